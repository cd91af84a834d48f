"""The tests that `pytest --pyargs tensorplug_testing --device NAME` collects."""

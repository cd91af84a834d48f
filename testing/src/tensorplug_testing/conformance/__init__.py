"""What `pytest --pyargs tensorplug_testing --device NAME` collects."""

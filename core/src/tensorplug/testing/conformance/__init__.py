"""What `pytest --pyargs tensorplug.testing --device NAME` collects."""

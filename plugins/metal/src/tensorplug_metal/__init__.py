"""The metal backend of tensorplug."""

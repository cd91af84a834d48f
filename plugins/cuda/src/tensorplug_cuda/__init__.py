"""The cuda backend of tensorplug."""

"""The template backend of tensorplug."""

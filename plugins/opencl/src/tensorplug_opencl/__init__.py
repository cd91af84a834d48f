"""The opencl backend of tensorplug."""

"""A faster variant of the cpu backend of tensorplug: compiled kernels on a pool of threads."""

"""The cpu backend of tensorplug: NumPy kernels, pure Python."""

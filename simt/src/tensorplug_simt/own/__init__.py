"""What lowerings to a backend's own kernels have in common with those of others, by family."""

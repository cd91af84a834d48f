"""A stand-in for cuda-bindings: the part that the cuda backend calls."""

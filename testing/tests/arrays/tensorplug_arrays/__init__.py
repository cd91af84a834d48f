"""A backend of the kind that wraps an array library: plans, and weights that are kept decoded.

Each fault that `ArraysDevice` takes is an error that strangers made or planted in one like it.
"""

FAULTS = (
    "rebind does nothing",
    "rope turns its source",
    "copies mind no overlap",
    "more memory free than there is",
    "batches repeat modulo",
    "weights in bf16",
    "angles and masks of the first run",
    "ids are clamped",
    "decoded weights are kept",
    "errors of ids are raw",
    "plans keep their memory",
    "buffers keep their memory",
    "streams keep their scratch",
)

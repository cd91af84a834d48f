"""The shared lowerings, by family. Importing this module fills `SHARED`."""

from tensorplug_simt.families import (
    conv,
    elementwise,
    pool,
    rope,
    rows,
    upscale,
)

__all__ = [
    "conv",
    "elementwise",
    "pool",
    "rope",
    "rows",
    "upscale",
]

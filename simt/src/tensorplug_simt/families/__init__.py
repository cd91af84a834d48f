"""The shared lowerings, by family. Importing this module fills `SHARED`."""

from tensorplug_simt.families import (
    conv,
    copy,
    elementwise,
    pool,
    rope,
    rows,
    upscale,
)

__all__ = [
    "conv",
    "copy",
    "elementwise",
    "pool",
    "rope",
    "rows",
    "upscale",
]

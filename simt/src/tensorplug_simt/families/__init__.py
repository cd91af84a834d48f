"""The shared lowerings, by family. Importing this module fills `SHARED`."""

from tensorplug_simt.families import (
    conv,
    copy,
    elementwise,
    layout,
    pool,
    rope,
    rows,
    upscale,
)

__all__ = [
    "conv",
    "copy",
    "elementwise",
    "layout",
    "pool",
    "rope",
    "rows",
    "upscale",
]

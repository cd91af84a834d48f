"""The shared lowerings, by family. Importing this module fills `SHARED`."""

from tensorplug_simt.families import (
    attention_back,
    conv,
    copy,
    elementwise,
    gates,
    gradients,
    layout,
    linear_attention,
    pool,
    reduce,
    rope,
    rows,
    solve,
    sparse,
    ssm,
    upscale,
)

__all__ = [
    "attention_back",
    "conv",
    "copy",
    "elementwise",
    "gates",
    "gradients",
    "layout",
    "linear_attention",
    "pool",
    "reduce",
    "rope",
    "rows",
    "solve",
    "sparse",
    "ssm",
    "upscale",
]

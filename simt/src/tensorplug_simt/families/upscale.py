"""Images at other sizes."""

import numpy as np

from tensorplug.device import Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element, regions_of
from tensorplug_simt.lowering import lowers, need_types
from tensorplug_simt.program import Kernel, Program

UPSCALED = Kernel(
    "upscaled",
    "tensorplug_simt:kernels/upscale.k",
    ("x", "y"),
    ("y",),
    (("count", "uint"), *((f"f{dim}", "float") for dim in range(4)), ("shift", "float")),
)
MODES = ("nearest", "bilinear", "bicubic", "antialias")


@lowers("upscale")
def upscale(node: Tensor, facts: Facts) -> Program:
    """Each new element from those around its place."""
    need_types(node)
    (x,) = node.sources
    factors = [float(np.float32(n) / np.float32(m)) for n, m in zip(node.ne, x.ne, strict=True)]
    shift = 0.5
    if node.params["align_corners"]:
        shift = 0.0
        for dim in (0, 1):
            n, m = node.ne[dim], x.ne[dim]
            if n > 1 and m > 1:
                factors[dim] = float(np.float32(n - 1) / np.float32(m - 1))
    mode = "antialias" if node.params["antialias"] else str(node.params["mode"])
    numbers = {f"f{dim}": factor for dim, factor in enumerate(factors)} | {"shift": shift}
    defines = {"MODE": MODES.index(mode)}
    regions = regions_of(UPSCALED, node)
    made = per_element(UPSCALED, regions, node.size, facts, defines=defines, numbers=numbers)
    return Program((made,))

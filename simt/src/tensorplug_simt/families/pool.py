"""The largest or the mean of each window of a signal or an image, and the way back."""

from tensorplug.device import Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element, regions_of
from tensorplug_simt.lowering import lowers, need_types, number
from tensorplug_simt.program import Kernel, Program

TEXT = "tensorplug_simt:kernels/pool.k"
_WINDOW = tuple((f"{letter}{dim}", "int") for letter in "ksp" for dim in range(2))

POOLED = Kernel(
    "pooled",
    TEXT,
    ("x", "y"),
    ("y",),
    (("count", "uint"), ("flat", "int"), ("largest", "int"), *_WINDOW),
)
POOL_BACK = Kernel(
    "pool_back", TEXT, ("grad", "x", "y"), ("y",), (("count", "uint"), ("largest", "int"), *_WINDOW)
)


def _window(node: Tensor, dims: int) -> dict[str, int]:
    """Its kind, lengths, steps and paddings; the fraction of a padding pads only the end."""
    sizes = {
        name: int(number(node, name)) if name[1] == "0" or dims == 2 else int(name[0] != "p")
        for name, _ in _WINDOW
    }
    return {"largest": int(node.params["kind"] == "max"), **sizes}


@lowers("pool_1d", "pool_2d")
def pool(node: Tensor, facts: Facts) -> Program:
    """Each result from the elements of its window."""
    need_types(node)
    dims = 1 if node.op == "pool_1d" else 2
    regions, numbers = regions_of(POOLED, node), {"flat": int(dims == 1), **_window(node, dims)}
    return Program((per_element(POOLED, regions, node.size, facts, numbers=numbers),))


@lowers("pool_2d_back")
def pool_2d_back(node: Tensor, facts: Facts) -> Program:
    """Each element from the windows that have it."""
    need_types(node)
    regions, numbers = regions_of(POOL_BACK, node), _window(node, 2)
    return Program((per_element(POOL_BACK, regions, node.size, facts, numbers=numbers),))

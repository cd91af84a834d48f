"""Products with many columns by tensor cores, in f16 or bf16."""

from tensorplug.dtypes import BF16, F16
from tensorplug.tensor import Tensor
from tensorplug_cuda.kernels.columns import TEXT
from tensorplug_simt.facts import Facts
from tensorplug_simt.own.product import REPEATS, repeats
from tensorplug_simt.program import Kernel, Program, blocks_of, launch

MMA_PRODUCT = Kernel(
    "mma_product",
    "tensorplug_cuda:kernels/mma.cu",
    ("w", "x", "y"),
    ("y",),
    REPEATS,
    (TEXT,),
)
CHOICE = "tensor"
"""The value of the choice `products` that allows it."""
SIDE, ITEMS = 64, 128


def by_tensor_cores(node: Tensor, facts: Facts) -> Program | None:
    """The program of a `mul_mat` with elements; None where they are not wanted or do not fit.

    Both sides are rounded to bf16 where weights are, else to f16, as ggml does.
    """
    w, x = node.sources
    fits = w.dtype.is_block or w.dtype in (F16, BF16)
    if facts.choices.get("products") != CHOICE or not fits:
        return None
    product = launch(
        MMA_PRODUCT,
        {"w": w, "x": x, "y": node},
        groups=(blocks_of(w.ne[1], SIDE), blocks_of(x.ne[1], SIDE), node.ne[2] * node.ne[3]),
        local=(ITEMS,),
        defines={"BRAIN": 1} if w.dtype is BF16 else {},
        numbers=repeats(w, x),
    )
    return Program((product,))

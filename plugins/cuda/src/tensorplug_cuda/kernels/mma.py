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
SIDE, ITEMS = 64, 128


def fits(node: Tensor, _facts: Facts) -> bool:
    """Whether tensor cores compute a `mul_mat` with elements."""
    w = node.sources[0]
    return w.dtype.is_block or w.dtype in (F16, BF16)


def by_tensor_cores(node: Tensor, _facts: Facts) -> Program:
    """The program of a `mul_mat` that fits.

    Both sides are rounded to bf16 where weights are, else to f16, as ggml does.
    """
    w, x = node.sources
    product = launch(
        MMA_PRODUCT,
        {"w": w, "x": x, "y": node},
        groups=(blocks_of(w.ne[1], SIDE), blocks_of(x.ne[1], SIDE), node.ne[2] * node.ne[3]),
        local=(ITEMS,),
        defines={"BRAIN": 1} if w.dtype is BF16 else {},
        numbers=repeats(w, x),
    )
    return Program((product,))

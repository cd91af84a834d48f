"""Products with many columns that cuBLASLt computes where it is installed.

Both sides are of one 16-bit type: weights of blocks are decoded first, columns are rounded first.
The launch of the product is that of an own kernel, which computes it where cuBLASLt does not.

Measured on an H100, 8192 x 8192: 17 columns of f16 take 55 us and by the own kernel 271 us, of q8_0
128 us (most of them to decode the weights) and 576 us; 512 columns of f16 reach 631 TFLOP/s and by
the own kernel 210, of q8_0 384 and 81.
"""

from dataclasses import replace

from tensorplug.device import Tensor
from tensorplug.dtypes import DType
from tensorplug_cuda.kernels import cores, mma
from tensorplug_cuda.kernels.columns import blocks_in_order
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.copying import copies
from tensorplug_simt.families.product import COUNT
from tensorplug_simt.placing import ALIGNMENT
from tensorplug_simt.program import (
    Kernel,
    Launch,
    Program,
    Region,
    blocks_of,
    launch,
    region,
    scratch,
)
from tensorplug_simt.source import BYTES

LIBRARY_PRODUCT = replace(mma.MMA_PRODUCT)
"""A kernel object of its own with the text of `mma_product`: launches of this object are those
that cuBLASLt may compute."""
DECODED = Kernel(
    "decoded",
    "tensorplug_cuda:kernels/decode.cu",
    ("w", "y"),
    ("y",),
    COUNT,
    (BYTES, *cores.CORES),
)
PART, ITEMS = 32, 128
"""Elements that an item decodes, and items of a group."""


def fits(node: Tensor) -> bool:
    """Whether cuBLASLt may compute a product that tensor cores take."""
    w, x = node.sources
    kind = cores.factor_type(w.dtype)
    if not _matrices_fit(node):
        return False
    blocks_fit = blocks_in_order(w) and not w.splits_blocks
    if not (blocks_fit if w.dtype.is_block else _columns_fit(w)):
        return False
    converted = w.size * w.dtype.is_block + x.size * _is_converted(x, kind)
    return converted * kind.size <= mma.MOST_ROOM


def by_library(node: Tensor, facts: Facts) -> Program:
    """The program of a `mul_mat` that `fits`."""
    w, x = (region(source) for source in node.sources)
    kind = cores.factor_type(w.dtype)
    launches: list[Launch] = []
    room = 0
    if _is_converted(node.sources[1], kind):
        rounded = scratch(kind, x.ne)
        launches += copies(x, rounded, facts)
        x, room = rounded, ALIGNMENT * blocks_of(rounded.nbytes, ALIGNMENT)
    if w.dtype.is_block:
        plain = scratch(kind, w.ne, room)
        launches.append(_decoded(w, plain))
        w, room = plain, room + plain.nbytes
    product = mma.product(LIBRARY_PRODUCT, w, x, node, facts)
    return Program((*launches, product), scratch=room)


def _decoded(w: Region, plain: Region) -> Launch:
    """Weights of blocks as plain numbers in `plain`."""
    count = plain.nbytes // plain.dtype.size // PART
    return launch(
        DECODED,
        {"w": w, "y": plain},
        groups=(blocks_of(count, ITEMS),),
        local=(ITEMS,),
        defines={**cores.defines(plain.dtype), "GROUP_SIZE": ITEMS},
        count=count,
    )


def _is_converted(x: Tensor, kind: DType) -> bool:
    """Whether cuBLASLt needs a copy of the columns, in type `kind` and without gaps."""
    return x.dtype is not kind or not _columns_fit(x)


def _matrices_fit(node: Tensor) -> bool:
    """Whether one matrix of weights meets all matrices of columns, or each meets its own."""
    w, x = node.sources
    return w.ne[2] in (1, node.ne[2]) and w.ne[3] == x.ne[3] == 1 and _columns_fit(node)


def _columns_fit(tensor: Tensor) -> bool:
    """Whether columns lie as cuBLASLt takes them: no gaps within one, whole elements between."""
    size = tensor.dtype.size
    return tensor.nb[0] == size and all(step % size == 0 for step in tensor.nb[1:3])

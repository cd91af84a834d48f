"""Products with few columns, which read weights once: plain, scaled, biased or gated."""

from tensorplug.device import Group, Tensor
from tensorplug.dtypes import I32
from tensorplug.ops.glu import GLU
from tensorplug_cuda.kernels import cores, experts
from tensorplug_simt.facts import Facts
from tensorplug_simt.families.product import COUNT, PRODUCTS, repeats, rounding
from tensorplug_simt.grids import power_of_two
from tensorplug_simt.lowering import NoKernel
from tensorplug_simt.own.few import Few, FewKernels, followed, gated, kernels, unfused
from tensorplug_simt.program import Kernel, Launch, Program, Region, blocks_of, launch, scratch
from tensorplug_simt.source import BYTES

TEXT = "tensorplug_cuda:kernels/product.cu"
MATVEC_TEXT = "tensorplug_cuda:kernels/matvec.cu"
FEW = "tensorplug_cuda:kernels/few.cu"
RECORDS = "tensorplug_cuda:kernels/records.cu"
SHARES = "tensorplug_cuda:kernels/shares.cu"

ROUNDED = Kernel("rounded", MATVEC_TEXT, ("x", "y"), ("y",), COUNT, (RECORDS,), reusable=True)
MATVEC = kernels("matvec", MATVEC_TEXT, FEW, cores.QUADS, BYTES, RECORDS, SHARES)
WARP_PRODUCT = kernels("warp_product", TEXT, FEW, cores.QUADS)

ITEMS = 128
"""Of a group that has a warp, or a part of one, for each row of weights."""
COLUMNS = 8
"""Columns that one pass over weights serves at most."""
GATED_COLUMNS = 4
"""The same where two matrices go through at once."""
FEW_COLUMNS = 16
"""More columns are worth tiles."""
STEP = 32
"""Elements with a scale of their own in a rounded column."""
RECORD = 448
"""Bytes for eight of these steps."""


def few(node: Tensor, facts: Facts) -> Program:
    """The program of a product with elements."""
    return _program(unfused(node), rounding(facts, node))


def follow(group: Group, facts: Facts) -> Program:
    """A product with few columns with its scale, its bias or both."""
    made = followed(group)
    _need_few(made.product)
    return _program(made, rounding(facts, *group.nodes))


def gate(group: Group, facts: Facts) -> Program:
    """Two products of the same few columns, one of them activated, times each other."""
    made = gated(group)
    _need_few(made.product)
    w, w2 = made.product.sources[0], made.more["w2"]
    if _is_bytewise(w, facts) != _is_bytewise(w2, facts):
        raise NoKernel(f"no kernel for the layouts of {w} and {w2}")
    return _program(made, rounding(facts, *group.nodes))


def _need_few(product: Tensor) -> None:
    if not takes_few(product):
        raise NoKernel("many columns, which go through in tiles")


def takes_few(product: Tensor) -> bool:
    """Whether a product is computed here, and not in tiles."""
    w, x = product.sources[:2]
    if not (w.size and x.size and product.size):
        return False
    if product.op == "mul_mat_id":
        return not experts.are_many(product)
    return x.ne[1] <= FEW_COLUMNS


def _program(made: Few, facts: Facts) -> Program:
    """Columns are rounded to bytes where that suits the weights, then weights go through."""
    w, x = made.product.sources[:2]
    if not _is_bytewise(w, facts):
        return Program((_by_columns(WARP_PRODUCT, made, x, ITEMS // 32, {}),))
    codes, lanes = _codes(x), _lanes(w.ne[0])
    multiplied = _by_columns(MATVEC, made, codes, ITEMS // lanes, {"PER_ROW": lanes})
    return Program((_rounded(x, codes, facts), multiplied), scratch=codes.nbytes)


def _by_columns(
    kernels: FewKernels, made: Few, x: Tensor | Region, rows: int, defines: dict[str, int | str]
) -> Launch:
    """A group for `rows` rows of weights and some columns of `x`, or one column of each expert."""
    product, more = made.product, made.more
    w = product.sources[0]
    regions: dict[str, Tensor | Region] = {"w": w, "x": x, **more, "y": made.y}
    numbers: dict[str, int | float] = {"repeat2": 1, "repeat3": 1}
    if product.op == "mul_mat_id":
        regions["ids"], columns, defines = product.sources[2], 1, {**defines, "EXPERTS": 1}
        grid = (product.ne[1], product.ne[2])
    else:
        most = GATED_COLUMNS if "w2" in more else COLUMNS
        columns, numbers = power_of_two(min(x.ne[1], most)), repeats(w, product)
        grid = (blocks_of(x.ne[1], columns), product.ne[2] * product.ne[3])
    return launch(
        kernels.of(made),
        regions,
        groups=(blocks_of(w.ne[1], rows), *grid),
        local=(ITEMS,),
        defines={**defines, **made.defines, "COLUMNS": columns},
        numbers=numbers | (made.numbers if more else {}),
    )


def _is_bytewise(w: Tensor, facts: Facts) -> bool:
    """Whether rows of `w` are multiplied with columns that are rounded to bytes."""
    allowed = facts.int_dot and facts.int8_activations
    return w.dtype.is_block and allowed and blocks_in_order(w)


def blocks_in_order(w: Tensor) -> bool:
    """Whether the blocks of a row follow each other."""
    return w.nb[0] == w.dtype.size or w.ne[0] == w.dtype.block


def _rounded(x: Tensor, codes: Region, facts: Facts) -> Launch:
    count, together = x.size // STEP, facts.flat_group // STEP
    return launch(
        ROUNDED,
        {"x": x, "y": codes},
        groups=(blocks_of(count, together),),
        local=(facts.flat_group,),
        count=count,
    )


def _codes(x: Tensor) -> Region:
    """Scratch memory for rounded columns: codes and scales of multiples of 8 steps, as `records.cu` lays them out."""
    words = blocks_of(x.ne[0], 8 * STEP) * RECORD // 4
    return scratch(I32, (words, *x.ne[1:]))


def _lanes(length: int) -> int:
    """Items for each row: fewer where rows are short. At least 16, whose blocks are multiples of 512 elements apart."""
    return 32 if length // STEP >= 2 * 32 else 16


# --- scratch memory of groups --------------------------------------------------------------------

END = 3
AFTER = {"mul": 1, "add": 2, "add_id": 2, **dict.fromkeys((*GLU, "swiglu_oai"), END)}
"""Ops that may follow a product in a group, in their order."""


def group_scratch(node: Tensor, facts: Facts) -> int:
    """Bytes for the rounded columns of products that `node` may be the end of a group with."""
    found = 0
    for source in node.sources if node.op in AFTER else ():
        if AFTER.get(source.op, END) < AFTER[node.op]:
            found = max(found, group_scratch(source, facts))
        elif source.op in PRODUCTS and takes_few(source) and _is_bytewise(source.sources[0], facts):
            found = max(found, _codes(source.sources[1]).nbytes)
    return found

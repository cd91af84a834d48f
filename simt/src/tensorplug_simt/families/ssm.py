"""State space models: convolution over time, selective scan."""

from tensorplug.device import Tensor
from tensorplug.dtypes import F32, I32, I64
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element, regions_of
from tensorplug_simt.lowering import NoKernel, lowers, need_type, need_types, number
from tensorplug_simt.program import Kernel, Program, blocks_of, launch

TEXT = "tensorplug_simt:kernels/ssm.k"
LARGEST = 256
"""The most states that an item can hold."""
_LANES = 16
"""States that an item updates at a time where a group is one item."""

SSM_CONV = Kernel("ssm_conv", TEXT, ("x", "weights", "y"), ("y",), (("count", "uint"),))
SSM_SCAN = Kernel(
    "ssm_scan",
    TEXT,
    ("s", "x", "dt", "a", "b", "c", "ids", "y"),
    ("y",),
    (("count", "uint"), ("slots", "int")),
)


@lowers("ssm_conv")
def ssm_conv(node: Tensor, facts: Facts) -> Program:
    """Each channel convolved over time, looking back."""
    need_types(node, frozenset({F32}))
    return Program((per_element(SSM_CONV, regions_of(SSM_CONV, node), node.size, facts),))


@lowers("ssm_scan")
def ssm_scan(node: Tensor, facts: Facts) -> Program:
    """An item for each row of states, over all tokens of its sequence."""
    *floats, ids = node.sources
    for tensor in floats:
        need_type(tensor, frozenset({F32}))
    need_type(ids, frozenset({I32, I64}))
    s, x = floats[:2]
    if s.ne[0] > LARGEST:
        raise NoKernel(f"{s.ne[0]} states for each element; the kernel ends at {LARGEST}")
    regions = regions_of(SSM_SCAN, node)
    rows, slots = x.ne[0] * x.ne[1] * x.ne[3], int(number(node, "K"))
    lanes, together = (max(1, min(_LANES, s.ne[0])), 1) if facts.wide else (1, facts.flat_group)
    defines: dict[str, int | str] = {"SIZE": s.ne[0], "LANES": lanes}
    if all(regions[name].nb[0] == F32.size for name in "abc"):
        defines["PACKED"] = 1
    scan = launch(
        SSM_SCAN,
        regions,
        groups=(blocks_of(rows, together),),
        local=(together,),
        defines=defines,
        count=rows,
        slots=slots,
    )
    return Program((scan,))

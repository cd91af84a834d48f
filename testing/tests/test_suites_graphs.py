"""The graph suite passes on sound devices and catches those with a fault."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device.plan import NodePlan
from tensorplug.fusion.library import PATTERNS
from tensorplug.fusion.matching import find_groups
from tensorplug_cpu.device import CPUDevice
from tensorplug_testing.anykernel import ALL_KERNELS
from tensorplug_testing.null import NullDevice
from tensorplug_testing.suites.blocks import GRAPHS
from tensorplug_testing.suites.drawing import Draw
from tensorplug_testing.suites.graphs import GraphTests


def rms_norm(node, out, x) -> None:
    out[...] = x / np.sqrt((x * x).mean(-1, keepdims=True) + node.params["eps"])


def silu(_node, out, x) -> None:
    out[...] = x / (1 + np.exp(-x))


MORE = {"rms_norm": rms_norm, "silu": silu}


null = partial(NullDevice, logs=False)

DEVICES = {
    "few_ops": partial(null, "null:0"),
    "more_ops": partial(null, "more:0", kernels=MORE),
    "all_ops": partial(null, "all:0", kernels=ALL_KERNELS, asynchronous=True),
    "host": partial(null, "host:0", host=True),
    "late": partial(null, "late:0", asynchronous=True, kernels=MORE),
    "bare": partial(
        null, "bare:0", asynchronous=True, events=False, async_transfer=False, async_copy=False
    ),
    "small": partial(null, "small:0", memory=8 << 20, max_size=1 << 18),
    "only_dup": partial(null, "dup:0", ops=["dup"]),
    "cpu": CPUDevice,
}


class TestGraphs(GraphTests):
    """Every test of the suite on devices that do all ops, or some of them."""

    @pytest.fixture(scope="class", params=DEVICES)
    @classmethod
    def device(cls, request):
        with DEVICES[request.param]() as made:
            yield made


class Apart:
    """The methods of Rig that a Draw uses, for graphs that are not run."""

    def __init__(self, device: tp.Device) -> None:
        self.device = device
        self.kept = []

    def keep(self, resource):
        self.kept.append(resource)
        return resource


def test_every_fusion_pattern_is_in_some_graph() -> None:
    found: set[str] = set()
    with null("null:0") as device:
        work = Apart(device)
        for whole in GRAPHS.values():
            groups = find_groups(tp.Graph(whole.build(Draw(work, 0))), PATTERNS)
            found.update(group.pattern.name for group in groups)
        for buffer in work.kept:
            buffer.close()

    assert found == {pattern.name for pattern in PATTERNS}


# --- planted faults ----------------------------------------------------------------------------


class Fused(NodePlan):
    """Computes the ops FIRST and THEN at once and does not write the first one's memory."""

    FIRST, THEN = "rms_norm", "mul"

    def _run(self) -> None:
        bindings = self.bound.bindings
        nodes = [n for n in self.bound.nodes if not n.is_view and n.size]
        hidden = {a: b for a, b in pairwise(nodes) if self.fuses(a, b)}
        for node in nodes:
            if node in hidden:
                continue
            inner = next((a for a, b in hidden.items() if b is node), None)
            if inner is None:
                self.backend._compute(node, bindings)
                continue
            aside = tp.Place(self.backend.device.buffer_type.alloc(inner.nbytes), 0)
            here = bindings.with_places({inner: aside})
            self.backend._compute(inner, here)
            self.backend._compute(node, here)

    def fuses(self, first, then) -> bool:
        return first.op == self.FIRST and then.op == self.THEN and then.sources[0] is first


class FusedProduct(Fused):
    FIRST, THEN = "scale", "add"


def planning_with(plan: type[NodePlan], **options):
    def make() -> NullDevice:
        device = NullDevice("faulty:0", kernels=MORE, fusions=(), **options)

        def planned(self, bound):
            self._check_support(bound)
            return plan(self, bound)

        device.backend_class = type("Faulty", (device.backend_class,), {"_plan": planned})
        return device

    return make


def with_kernel(**kernels):
    return partial(NullDevice, "faulty:0", kernels={**MORE, **kernels})


def mul_by_the_first_row(_node, out, a, b) -> None:
    out[...] = a * b[:1, :1, :1]


def add_through_the_result(_node, out, a, b) -> None:
    out[...] = 0
    out += a
    out += np.tile(b, [n // m for n, m in zip(a.shape, b.shape, strict=True)])


def scale_without_bias(node, out, x) -> None:
    out[...] = x * np.float32(node.params["scale"])


def set_the_next_row(_node, out, _table, rows, ids) -> None:
    out[0, 0, (ids.reshape(-1) + 1) % out.shape[2]] = rows[0, 0]


def get_the_first_rows(_node, out, table, _ids) -> None:
    out[...] = table[:, :, : out.shape[2]]


def product_in_halves(_node, out, w, x) -> None:
    w = np.repeat(np.repeat(w, x.shape[0] // w.shape[0], 0), x.shape[1] // w.shape[1], 1)
    out[...] = x[..., :-1] @ w.swapaxes(2, 3)[..., :-1, :]


def rms_norm_without_eps_and_root(_node, out, x) -> None:
    out[...] = x / ((x * x).mean(-1, keepdims=True))


class MaskLess(NullDevice):
    """Says that it masks, and does not."""

    def _refuses(self, node, source_types):
        return None if node.op == "soft_max" else super()._refuses(node, source_types)


def soft_max_without_mask(node, out, x, *_mask) -> None:
    powers = np.exp(x * node.params["scale"])
    out[...] = powers / powers.sum(-1, keepdims=True)


def hasty() -> NullDevice:
    device = NullDevice("faulty:0", asynchronous=True)
    device.backend_class = type(
        "Hasty", (device.backend_class,), {"_synchronize": lambda self: None}
    )
    return device


PLAIN, KEPT, TURNS = (
    "test_graph_as_it_is",
    "test_graph_with_every_value_kept",
    "test_graph_on_two_devices_in_turn",
)

FAULTS = {
    "fused op hides a value that is an output": (
        planning_with(Fused),
        f"{KEPT} and rms_norm_mul",
    ),
    "fused op hides a value that others read": (
        planning_with(FusedProduct),
        f"{KEPT} and scale_add",
    ),
    "broadcast row of the wrong number": (
        with_kernel(mul=mul_by_the_first_row),
        f"{PLAIN} and mixture",
    ),
    "op in place that clears its source": (
        with_kernel(add=add_through_the_result),
        f"{PLAIN} and over_its_source",
    ),
    "bias left out": (with_kernel(scale=scale_without_bias), f"{PLAIN} and scale_add_relu"),
    "row written next to its place": (
        with_kernel(set_rows=set_the_next_row),
        f"{PLAIN} and rope_set_rows",
    ),
    "rows gathered without their numbers": (
        with_kernel(get_rows=get_the_first_rows),
        f"{PLAIN} and routing",
    ),
    "product without the last element": (
        with_kernel(mul_mat=product_in_halves),
        f"{PLAIN} and product_bias_f32",
    ),
    "norm without its root": (
        with_kernel(rms_norm=rms_norm_without_eps_and_root),
        f"{PLAIN} and add_rms_norm",
    ),
    "mask ignored": (
        partial(MaskLess, "faulty:0", kernels={"soft_max": soft_max_without_mask}),
        f"{PLAIN} and attention_9",
    ),
    "wait left out between devices": (hasty, f"{TURNS} and mul_add"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught(failures, fault: str) -> None:
    make_device, only = FAULTS[fault]

    assert failures(GraphTests, make_device, only) == {only.partition(" ")[0]}


def test_fused_ops_pass_where_nobody_looks_between(failures) -> None:
    assert failures(GraphTests, planning_with(Fused), f"{PLAIN} and rms_norm_mul") == set()


def test_cpu_waits_for_an_asynchronous_device_whose_memory_the_host_sees(failures) -> None:
    late = partial(NullDevice, "late:0", asynchronous=True, host=True)

    assert failures(GraphTests, late, f"{PLAIN} and layers_1") == set()

"""Gradients, steps of optimizers, functions of the user: shapes, effects, refusals, schedules."""

from dataclasses import dataclass

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.dtypes import F16, F32, I32
from tensorplug.graph.tensor import leaf
from tensorplug.inspect import graphfile
from tensorplug_cpu.device import CPUDevice


def t(*shape, dtype=F32):
    return leaf("", shape, dtype)


SHAPES = {
    "silu_back": (lambda: tp.silu_back(t(3, 4, dtype=F16), t(3, 4)), (3, 4), F16),
    "rms_norm_back": (lambda: tp.rms_norm_back(t(3, 4), t(3, 4)), (3, 4), F32),
    "soft_max_back": (lambda: tp.soft_max_back(t(3, 4), t(3, 4)), (3, 4), F32),
    "rope_back": (lambda: tp.rope_back(t(5, 2, 8), t(5, dtype=I32), dims=8), (5, 2, 8), F32),
    "cross_entropy_loss": (lambda: tp.cross_entropy_loss(t(3, 4), t(3, 4)), (), F32),
    "cross_entropy_loss_back": (
        lambda: tp.cross_entropy_loss_back(t(1), t(3, 4), t(3, 4)),
        (3, 4),
        F32,
    ),
    "flash_attn_back": (
        lambda: tp.flash_attn_back(t(2, 3, 8), t(2, 7, 8), t(2, 5, 7), t(2, 3, 5)),
        (2 * 3 * 8 + 2 * 7 * 8 + 2 * 5 * 7 + 2,),
        F32,
    ),
    "flash_attn_back of groups": (
        lambda: tp.flash_attn_back(t(6, 3, 8), t(2, 7, 8), t(2, 5, 7), t(6, 3, 5), masked=True),
        (6 * 3 * 8 + 2 * 7 * 8 + 2 * 5 * 7 + 2,),
        F32,
    ),
    "opt_step_adamw": (
        lambda: tp.opt_step_adamw(t(3, 4), t(3, 4), t(3, 4), t(3, 4), t(7)),
        (3, 4),
        F32,
    ),
    "opt_step_sgd": (lambda: tp.opt_step_sgd(t(3, 4), t(3, 4), t(2)), (3, 4), F32),
    "map_custom1": (lambda: tp.map_custom1(t(3, 4, dtype=I32), print), (3, 4), I32),
    "map_custom2": (lambda: tp.map_custom2(t(3, 4), t(5), print), (3, 4), F32),
    "map_custom3": (lambda: tp.map_custom3(t(3, 4), t(5), t(6), print), (3, 4), F32),
    "custom": (lambda: tp.custom([t(3), t(4)], print, (2, 6), "f16"), (2, 6), F16),
}


@pytest.mark.parametrize("op", SHAPES)
def test_result_has_the_shape_and_type_of_its_op(op):
    build, shape, dtype = SHAPES[op]

    node = build()

    assert (node.op, node.shape, node.dtype) == (op.split()[0], shape, dtype)


@dataclass
class Unhashable:
    """A callable that is compared by value."""

    def __call__(self, y):
        y[...] = 1


REFUSALS = [
    (
        lambda: tp.silu_back(t(3, 4), t(3, 5)),
        "silu_back: grad and x differ in shape; got grad [3, 4], x [3, 5]",
    ),
    (
        lambda: tp.cross_entropy_loss_back(t(2), t(3, 4), t(3, 4)),
        "cross_entropy_loss_back: grad must be one element, the gradient of the loss; got grad [2],"
        " logits [3, 4], labels [3, 4]",
    ),
    (
        lambda: tp.cross_entropy_loss(t(0, 4), t(0, 4)),
        "cross_entropy_loss: there are no logits; got logits [0, 4], labels [0, 4]",
    ),
    (
        lambda: tp.flash_attn_back(t(3, 8), t(7, 8), t(5, 6), t(3, 5)),
        "flash_attn_back: k must be [size, positions, ...] and v [positions, value size, ...]; got "
        "q [3, 8], k [7, 8], v [5, 6], grad [3, 5]",
    ),
    (
        lambda: tp.flash_attn_back(t(3, 8), t(7, 8), t(5, 7), t(3, 6)),
        "flash_attn_back: grad must have ne (5, 3, 1, 1); got q [3, 8], k [7, 8], v [5, 7], grad "
        "[3, 6]",
    ),
    (
        lambda: tp.flash_attn_back(t(9, 8), t(7, 8), t(5, 7), t(9, 5), masked=True),
        "flash_attn_back: a causal mask needs at least 9 positions; got q [9, 8], k [7, 8], v "
        "[5, 7], grad [9, 5]",
    ),
    (
        lambda: tp.opt_step_adamw(t(3), t(3), t(3), t(3), t(6)),
        "opt_step_adamw: settings must be a vector of 7 numbers; got x [3], grad [3], m [3], v "
        "[3], settings [6]",
    ),
    (
        lambda: tp.opt_step_sgd(t(3), t(4), t(2)),
        "opt_step_sgd: x and grad differ in shape; got x [3], grad [4], settings [2]",
    ),
    (
        lambda: tp.custom([t(1)] * 11, print, (1,)),
        "custom: 11 sources given; it takes at most 10",
    ),
    (
        lambda: tp.flash_attn_back(t(3, 3, 8), t(2, 7, 8), t(2, 5, 7), t(3, 3, 5)),
        "flash_attn_back: the heads or the batch of q are not a multiple of those of k; got q "
        "[3, 3, 8], k [2, 7, 8], v [2, 5, 7], grad [3, 3, 5]",
    ),
    (
        lambda: tp.flash_attn_back(t(3, 0), t(7, 0), t(5, 7), t(3, 5)),
        "flash_attn_back: the head size is 0; got q [3, 0], k [7, 0], v [5, 7], grad [3, 5]",
    ),
    (
        lambda: tp.custom([], print, (3, 33), "q8_0"),
        "q8_0: a row of 33 elements is not a multiple of the block length 32; pad the row",
    ),
    (
        lambda: tp.map_custom1(t(1), print, n_tasks=-2),
        "map_custom1: n_tasks = -2; takes a number of calls, -1 for one call per thread, or 0 for "
        "one call without `ith` and `nth`",
    ),
    (
        lambda: tp.map_custom1(t(1), Unhashable()),
        "map_custom1: function Unhashable() is not hashable, so graphs that call it cannot "
        "be compared; pass a method of it, or a lambda",
    ),
    (
        lambda: tp.map_custom1(t(1), 3),
        "map_custom1: parameter 'function' must be Callable, got 3",
    ),
]


@pytest.mark.parametrize(("build", "sentence"), REFUSALS, ids=[said[:40] for _, said in REFUSALS])
def test_wrong_use_is_refused_with_a_sentence(build, sentence):
    with pytest.raises(tp.TensorplugError) as caught:
        build()

    assert str(caught.value) == sentence


def adamw_by_hand(x, grad, m, v, settings):
    rate, b1, b2, eps, decay, c1, c2 = settings
    m, v = b1 * m + (1 - b1) * grad, b2 * v + (1 - b2) * grad**2
    return x * (1 - rate * decay) - rate * m * c1 / (np.sqrt(v * c2) + eps), m, v


def test_step_writes_weights_and_both_moments_where_they_lie():
    rng = np.random.default_rng(5)
    data = [rng.uniform(0.1, 1, (3, 4)).astype(np.float32) for _ in range(4)]
    settings = np.array([0.1, 0.9, 0.99, 1e-6, 0.01, 1.1, 1.2], np.float32)
    with CPUDevice("cpu:0") as device, device.open() as backend, tp.Scheduler([backend]) as plan:
        x, m, v = (backend.place(n, d) for n, d in zip("xmv", data[:3], strict=True))
        grad = tp.input("grad", (3, 4), F32)
        given = tp.input("settings", (7,), F32)
        step = tp.opt_step_adamw(x, grad, m, v, given)
        after = tp.scale(m, 2.0)

        results = plan.schedule([after], effects=[step]).run({grad: data[3], given: settings})

        wanted = adamw_by_hand(data[0], data[3], data[1], data[2], settings)
        found = [tp.transfer.read(tensor) for tensor in (x, m, v)]
        np.testing.assert_allclose(results[after], 2 * wanted[1], rtol=1e-5)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_step_whose_moments_lie_on_another_device_is_refused(null_devices):
    fast, slow = null_devices
    x, v = (fast.place(name, np.zeros(4, np.float32)) for name in "xv")
    m = slow.place("m", np.zeros(4, np.float32))
    step = tp.opt_step_adamw(x, tp.input("g", (4,), F32), m, v, tp.input("s", (7,), F32))

    with tp.Scheduler([fast, slow]) as scheduler, pytest.raises(tp.Unsupported) as caught:
        scheduler.schedule([step], effects=[step])

    assert str(caught.value).endswith("which lies in null:1; place both in memory of one device")


@pytest.fixture
def null_devices():
    from tensorplug_testing.null import NullDevice

    devices = [
        NullDevice("null:0", ops=["opt_step_adamw"]),
        NullDevice("null:1", device_type=tp.DeviceType.CPU, host=True),
    ]
    yield [device.open() for device in devices]
    for device in devices:
        device.close(force=True)


def failing(y, a):
    raise ValueError(f"no {a.shape}")


def test_error_in_a_function_of_the_user_names_the_node_and_keeps_the_cause():
    with CPUDevice("cpu:0") as device, device.open() as backend, tp.Scheduler([backend]) as plan:
        x = tp.input("x", (3,), F32)
        schedule = plan.schedule(tp.map_custom1(x, failing, name="mine"))

        with pytest.raises(tp.GraphError) as caught:
            schedule.run({x: np.zeros(3, np.float32)})

    assert str(caught.value) == (
        "<Tensor 'mine', map_custom1, f32[3]>: its function failing raised ValueError: no (3,)"
    )
    assert isinstance(caught.value.__cause__, ValueError)


def run_on_cpu(node, values, threads=2):
    with (
        CPUDevice("cpu:0") as device,
        device.open(threads=threads) as backend,
        tp.Scheduler([backend]) as scheduler,
    ):
        return scheduler.schedule(node).run(values)


def test_function_is_called_once_for_each_part_of_the_work():
    calls = []
    x = tp.input("x", (3,), F32)
    node = tp.map_custom1(x, lambda y, a, ith, nth: calls.append((ith, nth)), n_tasks=5)

    run_on_cpu(node, {x: np.zeros(3, np.float32)})

    assert sorted(calls) == [(i, 5) for i in range(5)]


def test_function_is_called_on_each_thread_where_that_is_asked_for():
    calls = []
    x = tp.input("x", (3,), F32)
    node = tp.map_custom1(x, lambda y, a, ith, nth: calls.append((ith, nth)), n_tasks=-1)

    run_on_cpu(node, {x: np.zeros(3, np.float32)}, threads=3)

    assert sorted(calls) == [(0, 3), (1, 3), (2, 3)]


def failing_part(y, a, ith, nth):
    if ith == 1:
        raise ValueError(f"part {ith} of {nth}")


def test_error_in_a_part_of_the_work_names_the_node_too():
    x = tp.input("x", (3,), F32)
    node = tp.map_custom1(x, failing_part, n_tasks=3, name="mine")

    with pytest.raises(tp.GraphError) as caught:
        run_on_cpu(node, {x: np.zeros(3, np.float32)})

    assert str(caught.value) == (
        "<Tensor 'mine', map_custom1, f32[3]>: its function failing_part raised ValueError: part 1 "
        "of 3"
    )


def overwriting(y, a):
    a[...] = 1


def test_function_cannot_write_into_its_sources():
    x = tp.input("x", (3,), F32)

    with pytest.raises(tp.GraphError) as caught:
        run_on_cpu(tp.map_custom1(x, overwriting, name="mine"), {x: np.zeros(3, np.float32)})

    assert str(caught.value) == (
        "<Tensor 'mine', map_custom1, f32[3]>: its function overwriting raised ValueError: "
        "assignment destination is read-only"
    )


def test_function_is_refused_weights_that_are_stored_otherwise():
    weights = t(3, 4, dtype=F16)
    with CPUDevice("cpu:0") as device:
        answer = device.refuses(tp.map_custom1(weights, failing), {weights: device.expanded})

    assert answer == tp.Refusal(
        f"cpu:0: map_custom1: the f16 data of {weights} is stored expanded to f32"
    )


def test_graph_that_calls_a_function_cannot_be_saved(tmp_path):
    graph = tp.Graph(tp.map_custom1(t(3), failing, name="mine"))

    with pytest.raises(tp.GraphError) as caught:
        graphfile.save(graph, tmp_path / "graph.json")

    assert str(caught.value) == (
        "pack: <Tensor 'mine', map_custom1, f32[3]> calls a Python function, which cannot be packed"
    )

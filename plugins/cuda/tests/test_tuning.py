"""Who multiplies where there are many columns, by the stand-in's clock; emulated."""

import logging
from dataclasses import replace
from threading import Thread

import numpy as np
import pytest
from cublaslt import CublasLt
from cupy._machine import ILLEGAL_ADDRESS, OUT_OF_MEMORY, CUDARuntimeError

import tensorplug as tp
from tensorplug.device import DeviceLost, OptionError, OutOfMemory, Unsupported
from tensorplug.dtypes import IQ2_XXS, MXFP4
from tensorplug_cuda import lt, tuning
from tensorplug_cuda.kernels.ways import PRODUCTS, WAYS, class_of, names_of, program_of
from tensorplug_emulator import missing
from tensorplug_simt import tuning as shared
from tensorplug_testing.cases.case import node_of
from tensorplug_testing.cases.matmul import BLOCKS
from tensorplug_testing.tiers import select

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

KERNELS = {"own": "tp_tiled_product", "tensor": "tp_mma_product", "cublaslt": "cublaslt"}
"""What the machine's clock knows each way by."""
CLASS = "mul_mat f16[64x64x1x1] f32[64x32x1x1] precision=default: own tensor"


UNCHANGED = dict(WAYS)


@pytest.fixture(autouse=True)
def _measuring(monkeypatch, tmp_path):
    """Choices of the test's own, for products as small as the emulator likes them."""
    monkeypatch.setenv("TENSORPLUG_CACHE", str(tmp_path))
    for op, ways in UNCHANGED.items():
        monkeypatch.setitem(WAYS, op, replace(ways, least=1))


@pytest.fixture(autouse=True)
def library(monkeypatch):
    """The stand-in for cuBLASLt."""
    library = CublasLt()
    monkeypatch.setattr(lt, "library", lambda: library)
    return library


def product(dtype=tp.F16):
    w, x = tp.input("w", (40, 64), dtype), tp.input("x", (20, 64), tp.F32)
    return w, x, tp.mul_mat(w, x)


def kind_of(node, device):
    return class_of(node, names_of(node, device.facts), device.facts)


@pytest.fixture
def kind(device):
    """The class of `product`."""
    kind = kind_of(product()[2], device)
    assert kind.startswith(f"{CLASS} cublaslt 130101 ")
    return kind


def multiply(device, runs=1):
    """Products of a plan by weights of f16, and what they must be."""
    w, x, y = product()
    random = np.random.default_rng(1)
    given = {t: random.standard_normal(t.shape).astype(t.dtype.storage) for t in (w, x)}
    with device.open() as stream, tp.Scheduler([stream]).schedule(y) as run:
        found = [run.run(given)[y] for _ in range(runs)]
    return found, given[x].astype(float) @ given[w].astype(float).T


def let_win(machine, fastest):
    """Let one way take less than the others."""
    machine.times = {kernel: 0.1 if way == fastest else 0.5 for way, kernel in KERNELS.items()}


@pytest.mark.parametrize("fastest", KERNELS)
def test_fastest_way_computes_products_with_many_columns(device, machine, kind, fastest):
    let_win(machine, fastest)

    (found,), wanted = multiply(device)

    assert device.facts.choices[kind] == fastest
    assert np.sum((found - wanted) ** 2) < 1e-6 * np.sum(wanted**2)


def half_as_much_again(result):
    result[:-1] *= 1.5


def no_numbers(result):
    result[7] = np.nan


def one_wrong(result):
    result[9] += 1.5


def one_too_many(result):
    result[-1] = 0


def lost(_result):
    raise CUDARuntimeError(ILLEGAL_ADDRESS)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (half_as_much_again, "its result is off by 0.25"),
        (no_numbers, "its result is off by inf"),
        (one_wrong, "one of its results is off by "),
        (one_too_many, "it writes beyond its memory"),
    ],
)
def test_way_that_computes_something_else_is_refused(
    device, machine, library, caplog, kind, fault, reason
):
    let_win(machine, "cublaslt")
    library.fault = fault

    with caplog.at_level(logging.WARNING):
        multiply(device)

    assert device.facts.choices[kind] == "own"
    assert f"cuda:0 (emulated GPU): cublaslt is not taken for {kind}: {reason}" in caplog.text


def many_columns(dtype):
    return tp.mul_mat(tp.input("w", (40, 256), dtype), tp.input("x", (128, 256), tp.F32))


def attention(dtype, scale=0.125, softcap=30.0):
    q = tp.input("q", (2, 32, 64), tp.F32)
    k, v = (tp.input(name, (2, 80, 64), dtype) for name in "kv")
    mask = tp.input("mask", (32, 80), tp.F16)
    return tp.flash_attn_ext(q, k, v, mask, scale=scale, softcap=softcap)


def experts(dtype):
    w, x = tp.input("w", (4, 40, 256), dtype), tp.input("x", (20, 1, 256), tp.F32)
    return tp.mul_mat_id(w, x, tp.input("ids", (20, 2), tp.I32))


LONG = [attention(tp.F16), experts(tp.Q4_K)]
SLOW = [many_columns(t) for t in (tp.F32, tp.BF16, *BLOCKS)]
SLOW += [attention(t) for t in (tp.BF16, tp.Q8_0, tp.Q4_0)]
SLOW += [attention(t, 1.0, 0.0) for t in (tp.F16, tp.Q8_0)]
SLOW += [experts(t) for t in (tp.F16, tp.BF16, MXFP4, IQ2_XXS)]


@pytest.mark.parametrize(
    "node",
    [
        *[
            pytest.param(node, marks=pytest.mark.long)
            for node in (attention(tp.F16), experts(tp.Q4_K))
        ],
        *[pytest.param(node, marks=pytest.mark.slow) for node in SLOW],
    ],
    ids=lambda node: f"{node.op} {node.sources[1 if node.op == 'flash_attn_ext' else 0].dtype}",
)
def test_no_way_is_refused_for_the_operands_that_it_is_tried_with(device, machine, caplog, node):
    machine.times = dict.fromkeys(("tp_attend", "tp_expert_tiles", "tp_tiled_product"), 1.0)

    device.tuner.tune(node)

    kind, chosen = list(device.facts.choices.items())[-1]
    assert kind.startswith(f"{node.op} ")
    assert chosen != "own"
    assert caplog.messages == []


def test_way_that_fails_is_refused(device, machine, library, caplog, kind):
    let_win(machine, "cublaslt")
    library.status = 13

    with caplog.at_level(logging.WARNING):
        multiply(device)

    assert device.facts.choices[kind] == "own"
    assert f"cublaslt is not taken for {kind}: cuBLASLt: status 13" in caplog.text


def test_nothing_is_chosen_where_the_usual_way_fails(device, machine, kind):
    machine.failing = True

    multiply(device)

    assert kind not in device.facts.choices


def test_choice_is_kept_for_later_processes(devices, machine):
    let_win(machine, "tensor")
    (first,) = devices()
    with first:
        multiply(first)

    (second,) = devices()
    with second:
        kind = kind_of(product()[2], second)
        before = dict(second.facts.choices)
        launches = machine.launches
        multiply(second)

    assert before == {PRODUCTS: "own tensor cublaslt", kind: "tensor"}
    assert machine.launches == launches + 1


def test_choice_that_another_device_made_meanwhile_is_taken(devices, machine, monkeypatch):
    monkeypatch.setenv("TENSORPLUG_CUDA_EMULATED", "2")
    let_win(machine, "tensor")
    first, second = devices()
    with first, second:
        multiply(first)
        launches = machine.launches

        multiply(second)

        assert machine.launches == launches + 1
        assert second.facts.choices[kind_of(product()[2], second)] == "tensor"


def test_way_that_loses_the_gpu_is_not_tried_again(devices, machine, library, caplog):
    library.fault = lost
    (first,) = devices()
    kind = kind_of(product()[2], first)
    with first, pytest.raises(DeviceLost), caplog.at_level(logging.WARNING):
        multiply(first)
    machine.reset()

    (second,) = devices()
    with second:
        multiply(second)

    assert f"cublaslt is not taken for {kind}: cuda:0: launch: cudaErrorIllegal" in caplog.text
    assert kind not in second.facts.choices
    assert machine.launches == 1


def from_call(number, fault):
    """What does `fault` from so many calls on."""
    nothing = iter([no_fault] * (number - 1))

    def call(result):
        next(nothing, fault)(result)

    return call


def no_fault(_result):
    pass


def interrupted(_result):
    raise KeyboardInterrupt


def test_choice_is_made_anew_after_it_was_interrupted(devices, machine, library):
    let_win(machine, "tensor")
    library.fault = interrupted
    (first,) = devices()
    with first, pytest.raises(KeyboardInterrupt):
        first.tuner.tune(product()[2])
    machine.reset()
    let_win(machine, "tensor")
    library.fault = no_fault

    (second,) = devices()
    with second:
        second.tuner.tune(product()[2])

        assert second.facts.choices[kind_of(product()[2], second)] == "tensor"


def test_way_that_others_try_is_left_to_them(devices, machine, library):
    (first,) = devices()
    file = tuning.choice_file(first.gpu)
    with first:
        kind = kind_of(product()[2], first)
        file.begin(kind)

        multiply(first)

    assert machine.launches == 1
    assert (kind in first.facts.choices, dict(file.read())) == (False, {})


def failing(library):
    """A product after which the library fails at once."""

    def fault(_result):
        library.status = 13

    return fault


def wrong(_library):
    return half_as_much_again


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(failing, "cuBLASLt: status 13"), (wrong, "its result is off by 0.25")],
)
@pytest.mark.parametrize("call", [3, 12])
def test_way_that_goes_wrong_once_it_is_timed_is_refused_alone(
    device, machine, library, caplog, kind, fault, reason, call
):
    machine.times = {KERNELS["own"]: 0.5, KERNELS["tensor"]: 0.2, KERNELS["cublaslt"]: 0.1}
    library.fault = from_call(call, fault(library))

    with caplog.at_level(logging.WARNING):
        device.tuner.tune(product()[2])

    assert device.facts.choices[kind] == "tensor"
    assert f"cublaslt is not taken for {kind}: {reason}" in caplog.text


def test_passing_lack_of_memory_is_no_verdict(device, machine, library, caplog, kind):
    library.fault = full

    with caplog.at_level(logging.WARNING):
        device.tuner.tune(product()[2])

    assert kind not in device.facts.choices
    assert dict(tuning.choice_file(device.gpu).read()) == {}
    assert tuning.choice_file(device.gpu).begin(kind)
    assert caplog.messages == []


def full(_result):
    raise CUDARuntimeError(OUT_OF_MEMORY)


def of(rows, length, columns, dtype=tp.F16):
    return tp.mul_mat(
        tp.input("w", (rows, length), dtype), tp.input("x", (columns, length), tp.F32)
    )


def behind(rows, length, columns, first):
    """A product of columns that start so many elements into their memory."""
    x = tp.input("x", (columns * length + 64,), tp.F32)[first : first + columns * length]
    return tp.mul_mat(tp.input("w", (rows, length), tp.F16), x.reshape(columns, length))


def heads(size):
    q, k = tp.input("q", (4, 300, size), tp.F32), tp.input("k", (4, 300, size), tp.F16)
    return tp.flash_attn_ext(q, k, k, scale=0.125)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (of(5000, 4096, 300), of(8192, 4096, 512)),
        (heads(96), heads(128)),
        (of(64, 64, 32), of(64, 60, 32)),
        (behind(64, 64, 32, 0), behind(64, 64, 32, 1)),
    ],
    ids=["tiles", "heads", "rows that are not aligned", "views that are not aligned"],
)
def test_nodes_share_a_class_only_where_ways_run_the_same_kernels(device, one, other):
    device.facts = replace(device.facts, units=132)

    kinds = [kind_of(node, device).rsplit(" ", 1) for node in (one, other)]

    assert kinds[0][0] == kinds[1][0]
    assert kinds[0][1] != kinds[1][1]


def test_large_nodes_of_one_kernel_share_a_class(device):
    assert kind_of(of(5000, 4096, 400), device) == kind_of(of(8192, 4096, 512), device)


def test_views_are_tried_as_far_from_aligned_addresses_as_they_lie(device, machine, caplog):
    node = behind(40, 64, 20, 1)

    device.tuner.tune(node)

    assert kind_of(node, device) in device.facts.choices
    assert caplog.messages == []


def test_decode_does_not_wait_for_choices_of_another_thread(device, machine):
    decoded = tp.mul_mat(tp.input("w", (40, 64), tp.F16), tp.input("x", (1, 64), tp.F32))
    device.tuner.tune(product()[2])

    with device.tuner._lock:
        threads = [Thread(target=device.tuner.tune, args=(n,)) for n in (decoded, product()[2])]
        for thread in threads:
            thread.start()
            thread.join(10)
        waiting = [thread.is_alive() for thread in threads]

    assert waiting == [False, False]


def test_class_is_timed_once(device, machine):
    multiply(device)
    launches = machine.launches

    multiply(device)

    assert machine.launches == launches + 1


def test_plan_with_a_choice_is_captured(device, machine, library):
    let_win(machine, "cublaslt")

    found, wanted = multiply(device, runs=4)

    assert (machine.captures, machine.graph_launches) == (1, 3)
    assert all(np.sum((each - wanted) ** 2) < 1e-6 * np.sum(wanted**2) for each in found)


@pytest.mark.parametrize(("name", "value"), [("MOST_BYTES", 1), ("LEAST", 2**40)])
def test_nothing_is_timed_where_it_takes_too_much_or_too_little(
    device, machine, monkeypatch, kind, name, value
):
    monkeypatch.setattr(shared, name, value)

    multiply(device)

    assert machine.launches == 1
    assert kind not in device.facts.choices


def test_small_products_have_no_choice(device, monkeypatch):
    monkeypatch.setitem(WAYS, "mul_mat", replace(WAYS["mul_mat"], least=2 * 20 * 40 * 64 + 1))

    assert names_of(product()[2], device.facts) == ("own",)


@pytest.mark.parametrize("op", WAYS)
def test_no_case_of_the_kit_is_so_large_that_it_is_timed(op):
    ways = UNCHANGED[op]

    nodes = [node for node in map(node_of, select("full", ops=[op])) if ways.applies(node)]

    assert nodes
    assert max(map(ways.operations, nodes)) < ways.least


def test_all_memory_of_the_tuner_is_given_back(device, machine, kind):
    device.tuner.tune(product()[2])

    assert kind in device.facts.choices
    assert (machine.gpus[0].allocated, device.children) == (0, [])


def test_results_have_room_for_whichever_way_is_chosen(device):
    y = many_columns(tp.Q8_0)
    names = names_of(y, device.facts)

    needs = [program_of(name, y, device.facts).scratch for name in names]

    assert names == ("own", "tensor", "cublaslt")
    assert device.scratch(y) == max(needs) > 0


def test_results_have_room_for_the_way_that_is_chosen_alone(device, machine):
    let_win(machine, "own")
    multiply(device)

    assert device.scratch(product()[2]) == 0


def test_weights_that_take_much_memory_once_they_are_decoded_are_not_the_library_s(device):
    y = tp.mul_mat(tp.input("w", (2**17, 1024), tp.Q8_0), tp.input("x", (128, 1024), tp.F32))

    assert names_of(y, device.facts) == ("own", "tensor")


@pytest.mark.parametrize(
    ("dtype", "names"), [(tp.F16, ("own",)), (tp.Q8_0, ("own",)), (tp.F32, ("own", "cublaslt"))]
)
def test_products_that_may_not_be_rounded_are_not(device, dtype, names):
    w, x = tp.input("w", (40, 256), dtype), tp.input("x", (128, 256), tp.F32)

    assert names_of(tp.mul_mat(w, x, precision="f32"), device.facts) == names


def test_library_that_is_not_there_is_no_way(device, monkeypatch):
    def absent():
        raise Unsupported("cuBLASLt is not installed")

    monkeypatch.setattr(lt, "library", absent)

    multiply(device)

    assert kind_of(product()[2], device) in device.facts.choices
    assert not any("cublaslt" in kind for kind in device.facts.choices if kind != PRODUCTS)


def test_large_products_are_timed_on_some_of_their_rows(device):
    w, x = tp.input("w", (2, 100_000, 1024), tp.Q8_0), tp.input("x", (4, 512, 1024), tp.F32)

    part = WAYS["mul_mat"].cut(tp.mul_mat(w, x), 2**32)

    assert [t.ne for t in (*part.sources, part)] == [
        (1024, 792, 2, 1),
        (1024, 512, 4, 1),
        (792, 512, 4, 1),
    ]
    assert part.is_contiguous
    assert part.sources[0].is_contiguous


def test_experts_are_timed_in_memory_for_some_of_their_rows(device):
    w, x = tp.input("w", (128, 4096, 2048), tp.F16), tp.input("x", (2048, 1, 2048), tp.F32)
    node = tp.mul_mat_id(w, x, tp.input("ids", (2048, 8), tp.I32))

    part = WAYS["mul_mat_id"].cut(node, 2**33)

    assert part.sources[0].nbytes == 128 * 280 * 2048 * 2


def many_tokens():
    q, k = tp.input("q", (8, 9000, 64), tp.F32), tp.input("k", (2, 9000, 64), tp.F16)
    return tp.flash_attn_ext(q, k, k, scale=0.125)


def large_experts():
    w, x = tp.input("w", (8, 9000, 512), tp.F16), tp.input("x", (900, 2, 512), tp.F32)
    return tp.mul_mat_id(w, x, tp.input("ids", (900, 2), tp.I32))


@pytest.mark.parametrize("node", [many_tokens(), large_experts()], ids=lambda node: node.op)
def test_large_prompts_and_experts_are_timed_in_part(node):
    ways = WAYS[node.op]

    part = ways.cut(node, 2**32)

    assert part.is_contiguous
    assert 2**31 < ways.operations(part) <= 2**32 < ways.operations(node)


def test_nothing_is_timed_on_a_part_that_runs_other_kernels(device, monkeypatch):
    q, k = tp.input("q", (2, 160, 64), tp.F32), tp.input("k", (2, 256, 64), tp.F16)
    node = tp.flash_attn_ext(q, k, k, scale=0.125)
    tried = []

    def no_memory(_device, programs, _operand, *, most):
        tried.extend(program.launches[0].regions["q"].ne[1] for program in programs.values())
        raise OutOfMemory(f"{most} bytes")

    monkeypatch.setattr(shared, "MOST", 1)
    monkeypatch.setattr(shared, "trials", no_memory)
    device.tuner.tune(node)

    assert WAYS[node.op].cut(node, 1).sources[0].ne[1] == 65
    assert tried == [160, 160]


@pytest.mark.parametrize(
    ("setting", "capability", "names"),
    [
        ("", (8, 0), "own tensor cublaslt"),
        ("measured", (9, 0), "own tensor cublaslt"),
        ("own", (8, 0), None),
        ("tensor", (8, 0), "tensor"),
        ("measured", (7, 5), None),
    ],
)
def test_gpu_and_user_say_which_ways_there_are(
    devices, machine, monkeypatch, setting, capability, names
):
    monkeypatch.setenv("TENSORPLUG_CUDA_PRODUCTS", setting)
    major, minor = capability
    machine.gpus[0].properties |= {"major": major, "minor": minor}

    (device,) = devices()

    assert device.facts.choices.get(PRODUCTS) == names


def test_tensor_cores_that_a_gpu_does_not_have_are_asked_for_in_vain(devices, machine, monkeypatch):
    monkeypatch.setenv("TENSORPLUG_CUDA_PRODUCTS", "tensor")
    machine.gpus[0].properties |= {"major": 7, "minor": 5}

    with pytest.raises(OptionError, match=r"PRODUCTS=tensor: .* has no tensor cores for f16 and b"):
        devices()

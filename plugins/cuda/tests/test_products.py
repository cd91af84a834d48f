"""Products by cuBLASLt, for which a stand-in computes; emulated."""

import ctypes

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import DeviceError, Plan
from tensorplug_cpu.reference import decode, encode
from tensorplug_cuda import cublaslt
from tensorplug_cuda.kernels import KERNELS, library
from tensorplug_cuda.kernels.library import LIBRARY_PRODUCT
from tensorplug_emulator import missing
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import lower
from tensorplug_simt.program import Program
from tensorplug_testing.cases.blocks import HALF_SCALES, random_rows
from tensorplug_testing.cases.matmul import BLOCKS

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

TENSOR = Facts(wide=False, subgroup=32, subgroup_required=True, halves_from=0)


@pytest.fixture
def lt(monkeypatch):
    """The stand-in for cuBLASLt, on GPUs that take all products to tensor cores."""
    from cublaslt import CublasLt

    found = CublasLt()
    monkeypatch.setattr(cublaslt, "library", lambda: found)
    monkeypatch.setenv("TENSORPLUG_CUDA_PRODUCTS", "tensor")
    return found


@pytest.fixture
def stream(lt, device):
    with device.open() as stream:
        yield stream


def normal(*shape, seed=3):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def multiplied(stream, w, x, dtype=tp.F16, runs=1):
    """The product of weights of a type and columns, and the same in float64."""
    stored = encode(dtype, w)
    columns = tp.input("x", x.shape, tp.F32)
    y = tp.mul_mat(stream.place("w", stored, dtype=dtype), columns)
    with tp.Scheduler([stream]).schedule(y) as run:
        found = [run.run({columns: x})[y] for _ in range(runs)]
    matrices = decode(dtype, stored).reshape(w.shape)
    if w.ndim == 3:
        matrices = np.repeat(matrices, len(x) // len(w), axis=0)
    return found, x.astype(float) @ np.swapaxes(matrices, -1, -2)


def error(found, wanted):
    return np.sum((found - wanted) ** 2) / np.sum(wanted**2)


def names(stream):
    """What the only plan of a stream launches."""
    (plan,) = (child for child in stream.children if isinstance(child, Plan))
    return [launch.name for launch in plan._ready]


@pytest.mark.parametrize(
    ("dtype", "w", "x", "limit"),
    [
        (tp.F16, (40, 48), (17, 48), 1e-6),
        (tp.BF16, (40, 48), (20, 48), 1e-4),
        (tp.F16, (3, 40, 48), (3, 20, 48), 1e-6),
        (tp.F16, (1, 40, 48), (3, 20, 48), 1e-6),
        (tp.Q8_0, (40, 64), (64, 64), 1e-4),
        (tp.Q4_K, (40, 256), (130, 256), 1e-4),
        (tp.Q8_0, (2, 40, 64), (2, 64, 64), 1e-4),
    ],
)
def test_products_with_many_columns_are_the_library_s(stream, lt, dtype, w, x, limit):
    (found,), wanted = multiplied(stream, normal(*w), normal(*x, seed=4), dtype)

    assert lt.products == 1
    assert error(found, wanted) < limit


@pytest.mark.parametrize(
    ("dtype", "w", "x"),
    [
        (tp.F16, (40, 48), (8, 48)),
        (tp.F32, (40, 48), (20, 48)),
        (tp.Q8_0, (40, 64), (16, 64)),
        (tp.F16, (2, 40, 48), (4, 20, 48)),
    ],
    ids=["few columns", "floats that are not rounded", "few columns of blocks", "several for each"],
)
def test_other_products_are_the_kernels(stream, lt, dtype, w, x):
    (found,), wanted = multiplied(stream, normal(*w), normal(*x, seed=4), dtype)

    assert lt.products == 0
    assert error(found, wanted) < 5e-4


@pytest.mark.parametrize("large", [False, True])
def test_sides_that_need_too_much_room_are_converted_in_tiles(monkeypatch, large):
    w, x = tp.input("w", (64, 256), tp.Q8_0), tp.input("x", (64, 256), tp.F32)
    monkeypatch.setattr(library.mma, "MOST_ROOM", 2 * 2 * 64 * 256 - large)

    program = lower(tp.mul_mat(w, x), TENSOR, KERNELS.ops)

    assert isinstance(program, Program)
    assert (program.launches[-1].kernel is LIBRARY_PRODUCT) is not large


def test_exact_products_and_all_of_f32_are_the_kernels(lt, devices, monkeypatch):
    monkeypatch.setenv("TENSORPLUG_CUDA_PRODUCTS", "f32")
    (device,) = devices()
    with device, device.open() as stream:
        (found,), wanted = multiplied(stream, normal(40, 48), normal(20, 48))

    assert lt.products == 0
    assert error(found, wanted) < 1e-12


def test_columns_of_several_products_are_converted_once(stream, lt):
    x = normal(64, 64)
    columns = tp.input("x", x.shape, tp.F32)
    stored = [encode(tp.Q8_0, normal(40, 64, seed=seed)) for seed in (1, 2)]
    placed = [stream.place(f"w{i}", w, dtype=tp.Q8_0) for i, w in enumerate(stored)]
    products = [tp.mul_mat(w, columns) for w in placed]
    with tp.Scheduler([stream]).schedule(products) as run:
        found = run.run({columns: x})
        launched = names(stream)

    assert launched == ["copied_flat", *["decoded", "cublaslt"] * 2]
    for y, w in zip(products, stored, strict=True):
        assert error(found[y], x @ decode(tp.Q8_0, w).reshape(40, 64).T) < 1e-4


def test_products_that_follow_each_other_are_not_merged(stream, lt):
    x = normal(20, 48)
    columns = stream.place("x", x.astype(np.float16))
    products = [tp.mul_mat(stream.place(n, normal(40, 48).astype("f2")), columns) for n in "ab"]
    with tp.Scheduler([stream]).schedule(products) as run:
        run.run({})
        by_library = names(stream)

    assert (by_library, lt.products) == (["cublaslt"] * 2, 2)


def test_products_are_captured(stream, lt, machine):
    found, wanted = multiplied(stream, normal(40, 48), normal(20, 48), runs=4)

    assert (machine.captures, machine.graph_launches, lt.products) == (1, 3, 2)
    assert all(error(each, wanted) < 1e-6 for each in found)


def test_products_are_timed(stream, lt):
    stream.profile = True
    multiplied(stream, normal(40, 48), normal(20, 48))

    assert "cublaslt" in [span.name for span in stream.take_spans()]


def test_products_on_branches_share_a_workspace_and_follow_each_other(lt, device):
    x = normal(20, 48)
    with device.open(streams=3) as stream:
        columns = stream.place("x", x.astype(np.float16))
        w = [stream.place(n, normal(40, 48).astype(np.float16)) for n in "ab"]
        with tp.Scheduler([stream]).schedule([tp.mul_mat(each, columns) for each in w]) as run:
            for _ in range(3):
                run.run({})
            (plan,) = (child for child in stream.children if isinstance(child, Plan))

            assert (plan.launches, plan.branches) == (2, 1)


def test_what_the_library_has_nothing_for_is_the_kernel_s(stream, lt):
    lt.proposals = False

    (found,), wanted = multiplied(stream, normal(40, 48), normal(20, 48))

    assert lt.products == 0
    assert error(found, wanted) < 1e-6


def test_library_that_is_not_installed_leaves_products_to_the_kernel(device, monkeypatch):
    monkeypatch.setenv("TENSORPLUG_CUDA_PRODUCTS", "tensor")
    assert cublaslt.missing()
    with device.open() as stream:
        (found,), wanted = multiplied(stream, normal(40, 48), normal(20, 48))

    assert error(found, wanted) < 1e-6


def test_product_that_fails_says_so(stream, lt):
    lt.status = 13

    with pytest.raises(DeviceError, match="cuBLASLt: status 13 for a product"):
        multiplied(stream, normal(40, 48), normal(20, 48))


def test_plan_in_other_memory_multiplies_there(stream, lt):
    x = stream.place("x", np.eye(48, dtype=np.float16))
    w = tp.input("w", (40, 48), tp.F16)
    y = tp.mul_mat(w, x)
    steps = [y, tp.scale(y, 2.0)]
    size = 4 * 40 * 48
    buffers = [stream.device.buffer_type.alloc(3 * size) for _ in range(2)]

    def bound(buffer):
        places = {t: tp.Place(buffer, size * i) for i, t in enumerate([w, *steps])}
        buffer.write(0, np.arange(40 * 48).astype(np.float16))
        return tp.Part.of(tp.Graph(steps[-1]), tp.Bindings(places))

    with stream.plan(bound(buffers[0])) as plan:
        for _ in range(3):
            plan.run()
        plan.rebind(bound(buffers[1]))
        for _ in range(3):
            plan.run()
        stream.synchronize()

    wanted = 2 * np.arange(40 * 48).reshape(40, 48).astype(np.float16).astype(np.float32).T
    for buffer in buffers:
        assert (buffer.read(2 * size, size).view(np.float32).reshape(48, 40) == wanted).all()
        buffer.close()


def test_library_is_asked_once_for_products_of_one_shape(stream, lt):
    for _ in range(3):
        multiplied(stream, np.ones((40, 48), np.float32), np.ones((20, 48), np.float32))

    assert (lt.products, lt.questions) == (3, 1)


def test_product_without_memory_for_the_library_is_the_kernel_s(stream, lt, device):
    w, x = np.ones((40, 48), np.float32), np.ones((20, 48), np.float32)
    with device.buffer_type.alloc(device.memory().free - cublaslt.WORKSPACE // 2):
        (first,), wanted = multiplied(stream, w, x)
        by_library = lt.products

    multiplied(stream, w, x)

    assert (first == wanted).all()
    assert (by_library, lt.products) == (0, 1)


def test_nothing_is_left_of_a_closed_stream(lt, device, machine):
    with device.open() as stream:
        multiplied(stream, np.ones((40, 48), np.float32), np.ones((20, 48), np.float32))

    assert {facts["kind"] for facts in lt.made.values()} == {"destroyed"}


def test_heuristic_has_the_size_of_the_library_s():
    assert ctypes.sizeof(cublaslt.Heuristic) == 8 * 8 + 8 + 4 + 4 + 4 * 4


# --- weights of blocks -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", BLOCKS, ids=lambda dtype: dtype.name)
def test_decoded_weights_are_those_of_the_reference(stream, lt, dtype):
    shape = (2, 11, 256)  # of 176 parts of 32 elements, of which the second group has the last 48
    if dtype in HALF_SCALES:
        stored = random_rows(np.random.default_rng(6), dtype, shape)
    else:  # random bytes might be scales without a finite value
        stored = encode(dtype, normal(*shape))
    columns = tp.input("x", (2, 256, 256), tp.F32)
    y = tp.mul_mat(stream.place("w", stored, dtype=dtype), columns)

    with tp.Scheduler([stream]).schedule(y) as run:
        found = run.run({columns: np.broadcast_to(np.eye(256, dtype=np.float32), (2, 256, 256))})[y]
        launched = names(stream)

    wanted = decode(dtype, stored).reshape(shape)
    assert launched == ["copied_flat", "decoded", "cublaslt"]
    np.testing.assert_allclose(
        np.swapaxes(found, 1, 2), wanted, rtol=2**-8, atol=1e-6 * np.abs(wanted).max()
    )

"""Products by cuBLASLt, for which a stand-in computes; emulated."""

import ctypes

import numpy as np
import pytest
from cublaslt import CublasLt

import tensorplug as tp
from tensorplug.device import OptionError, Plan, Unsupported
from tensorplug_cpu.reference import decode, encode
from tensorplug_cuda import lt
from tensorplug_emulator import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture
def library(monkeypatch):
    """The stand-in for cuBLASLt, which the user has asked for."""
    library = CublasLt()
    monkeypatch.setattr(lt, "library", lambda: library)
    monkeypatch.setenv("TENSORPLUG_CUDA_PRODUCTS", "cublaslt")
    return library


@pytest.fixture
def stream(library, device):
    with device.open() as stream:
        yield stream


def multiplied(stream, w, x, dtype=tp.F32, runs=1):
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


CASES = [
    (tp.F32, (40, 48), (20, 48), 1e-12),
    (tp.F16, (40, 48), (20, 48), 1e-6),
    (tp.BF16, (40, 48), (20, 48), 1e-4),
    (tp.F16, (3, 40, 48), (3, 20, 48), 1e-6),
    (tp.F16, (1, 40, 48), (3, 20, 48), 1e-6),
    (tp.Q8_0, (40, 64), (128, 64), 1e-5),
    (tp.Q4_K, (40, 256), (130, 256), 1e-5),
]


@pytest.mark.parametrize(("dtype", "w", "x", "limit"), CASES)
def test_products_with_many_columns_are_the_library_s(stream, library, dtype, w, x, limit):
    random = np.random.default_rng(3)
    w, x = (random.standard_normal(shape).astype(np.float32) for shape in (w, x))

    (found,), wanted = multiplied(stream, w, x, dtype)

    assert library.products == 1
    assert error(found, wanted) < limit


@pytest.mark.parametrize(
    ("dtype", "w", "x"),
    [
        (tp.F16, (40, 48), (8, 48)),
        (tp.Q8_0, (40, 64), (100, 64)),
        (tp.F16, (2, 40, 48), (4, 20, 48)),
    ],
    ids=["few columns", "too few to decode weights", "each matrix for several"],
)
def test_other_products_are_the_kernels(stream, library, dtype, w, x):
    random = np.random.default_rng(4)
    w, x = (random.standard_normal(shape).astype(np.float32) for shape in (w, x))

    (found,), wanted = multiplied(stream, w, x, dtype)

    assert library.products == 0
    assert error(found, wanted) < 5e-4


def test_columns_of_several_products_are_copied_to_their_type_once(stream, library):
    random = np.random.default_rng(7)
    matrices, x = random.standard_normal((2, 40, 48)), random.standard_normal((20, 48))
    columns = tp.input("x", x.shape, tp.F32)
    weights = [stream.place(f"w{i}", w.astype(np.float16)) for i, w in enumerate(matrices)]
    products = [tp.mul_mat(w, columns) for w in weights]
    with tp.Scheduler([stream]).schedule(products) as run:
        found = run.run({columns: x.astype(np.float32)})
        (plan,) = (child for child in stream.children if isinstance(child, Plan))
        names = [launch.name for launch in plan._ready]

    assert (names[1:], library.products) == (["tiled_product"] * 2, 2)
    assert all(error(found[y], x @ w.T) < 1e-3 for y, w in zip(products, matrices, strict=True))


def test_products_are_captured(stream, library, machine):
    random = np.random.default_rng(5)
    w, x = (random.standard_normal(shape).astype(np.float32) for shape in ((40, 48), (20, 48)))

    found, wanted = multiplied(stream, w, x, tp.F16, runs=4)

    assert (machine.captures, machine.graph_launches, library.products) == (1, 3, 2)
    assert all(error(each, wanted) < 1e-6 for each in found)


def test_what_the_library_has_nothing_for_is_the_kernel_s(stream, library):
    library.proposals = False
    random = np.random.default_rng(6)
    w, x = (random.standard_normal(shape).astype(np.float32) for shape in ((40, 48), (20, 48)))

    (found,), wanted = multiplied(stream, w, x, tp.F16)

    assert library.products == 0
    assert error(found, wanted) < 1e-6


def test_plan_in_other_memory_multiplies_there(stream, library):
    x = tp.input("x", (20, 48), tp.F32)
    w = stream.place("w", np.eye(48, dtype=np.float32))
    steps = [tp.mul_mat(w, x)]
    steps.append(tp.scale(steps[0], 2.0))
    size = 20 * 48 * 4
    buffers = [stream.device.buffer_type.alloc(3 * size) for _ in range(2)]

    def bound(buffer):
        places = {t: tp.Place(buffer, size * i) for i, t in enumerate([x, *steps])}
        buffer.write(0, np.arange(20 * 48, dtype=np.float32))
        return tp.Part.of(tp.Graph(steps[-1]), tp.Bindings(places))

    with stream.plan(bound(buffers[0])) as plan:
        for _ in range(3):
            plan.run()
        plan.rebind(bound(buffers[1]))
        for _ in range(3):
            plan.run()
        stream.synchronize()

    found = [buffer.read(2 * size, size).view(np.float32) for buffer in buffers]
    assert all((each == 2 * np.arange(20 * 48)).all() for each in found)
    for buffer in buffers:
        buffer.close()


def test_library_is_asked_once_for_products_of_one_shape(stream, library):
    for _ in range(3):
        multiplied(stream, np.ones((40, 48), np.float32), np.ones((20, 48), np.float32))

    assert (library.products, library.questions) == (3, 1)


def test_product_without_memory_for_the_library_is_the_kernel_s(stream, library, device):
    w, x = np.ones((40, 48), np.float32), np.ones((20, 48), np.float32)
    with device.buffer_type.alloc(device.memory().free - lt.WORKSPACE // 2):
        (first,), wanted = multiplied(stream, w, x)
        by_library = library.products
        (second,), _ = multiplied(stream, w, x)

    multiplied(stream, w, x)

    assert (first == wanted).all()
    assert (second == wanted).all()
    assert (by_library, library.products) == (0, 1)


def test_nothing_is_left_of_a_closed_stream(library, device):
    with device.open() as stream:
        multiplied(stream, np.ones((40, 48), np.float32), np.ones((20, 48), np.float32))

    kinds = {facts["kind"] for facts in library.made.values()}
    assert kinds == {"destroyed"}


def test_library_is_asked_for_in_vain_where_there_is_none(devices, machine, monkeypatch):
    def absent():
        raise Unsupported("cuBLASLt is not installed; pip install nvidia-cublas")

    monkeypatch.setattr(lt, "library", absent)
    monkeypatch.setenv("TENSORPLUG_CUDA_PRODUCTS", "cublaslt")

    with pytest.raises(OptionError, match="PRODUCTS=cublaslt: cuBLASLt is not installed; pip"):
        devices()


def test_heuristic_has_the_size_of_the_library_s():
    assert ctypes.sizeof(lt.Heuristic) == 8 * 8 + 8 + 4 + 4 + 4 * 4


@pytest.mark.long
def test_installed_library_takes_all_descriptions():
    if lt.missing():
        pytest.skip(lt.missing())
    matrices = [lt.Matrix(256 * i, dtype, 64, 64, 64, 0) for i, dtype in ((1, tp.F16), (2, tp.F16))]
    result = lt.Matrix(1024, tp.F32, 64, 64, 64, 0)
    assert lt.version() >= 120000

    # Without a handle it gets as far as the question for an algorithm.
    with pytest.raises(Unsupported, match=r"^cuBLASLt: nothing for a product"):
        lt.Recipe(ctypes.c_void_p(0), *(m.layout for m in (*matrices, result)), 1)

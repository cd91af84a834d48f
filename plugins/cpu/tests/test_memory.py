"""Kinds of host memory, above all weights that are stored expanded to f32."""

import sys

import gguf
import numpy as np
import pytest

import tensorplug as tp
from tensorplug import transfer
from tensorplug.device import allocate, place_in
from tensorplug.dtypes import DTYPES
from tensorplug.graph.tensor import leaf
from tensorplug_testing.running import run

RNG = np.random.default_rng(5)
EXPANDABLE = [t for t in DTYPES if t in {tp.F32, tp.F16, tp.BF16} or t.is_block]


def put(device, dtype, stored, shape, buffer_type=None):
    """A weight with what is stored of it, in expanded memory."""
    spec = leaf("w", shape, dtype)
    kind = buffer_type or device.expanded
    weight = place_in(spec, kind.alloc(kind.alloc_size(spec), tp.WEIGHTS), 0)
    transfer.write(weight, stored)
    return weight


def stored_rows(dtype, rows, elements):
    """Valid stored data: small scales, so that nothing is infinite or NaN."""
    if not dtype.is_block:
        return RNG.normal(size=(rows, elements)).astype(np.float16).astype(dtype.storage)
    return RNG.integers(0, 60, (rows, dtype.row_size(elements)), dtype=np.uint8)


# --- own and mapped memory ------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 63, 64, 1000, 1 << 20])
def test_buffers_start_at_a_cache_line_and_have_the_size_asked_for(device, size):
    with device.buffer_type.alloc(size) as buffer:
        assert buffer.host().ctypes.data % 64 == 0
        assert buffer.size == buffer.host().size == size


def test_expanded_buffers_start_at_a_cache_line(device):
    spec = leaf("w", (2, 32), tp.Q4_0)
    with device.expanded.alloc(device.expanded.alloc_size(spec)) as buffer:
        assert buffer.expanded(spec, 0).ctypes.data % 64 == 0


@pytest.mark.parametrize("size", [1 << 60, sys.maxsize])
@pytest.mark.parametrize("kind", ["buffer_type", "expanded"])
def test_more_memory_than_there_is_is_out_of_memory(device, size, kind):
    with pytest.raises(tp.OutOfMemory):
        getattr(device, kind).alloc(size)


def test_mapped_memory_cannot_be_allocated(device):
    with device.import_host(np.zeros(8, np.uint8)) as buffer, pytest.raises(tp.Unsupported) as got:
        buffer.type.alloc(100)

    assert str(got.value) == (
        "cpu_mapped: cannot allocate 100 bytes, it only wraps memory that exists; use "
        "import_host(), or allocate 'cpu' memory"
    )


# --- expanded memory ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_expanded_memory_takes_what_f32_holds_exactly_and_we_can_read(device, dtype):
    spec = leaf("w", (2, 256), dtype)

    assert device.expanded.supports(spec) is (dtype in EXPANDABLE)


def test_expanded_memory_takes_four_bytes_for_each_element(device):
    assert device.expanded.alloc_size(leaf("w", (3, 256), tp.Q4_K)) == 3 * 256 * 4


@pytest.mark.parametrize("dtype", EXPANDABLE, ids=str)
def test_weights_are_decoded_when_they_are_written(device, backend, dtype):
    stored = stored_rows(dtype, 5, 512)
    weight = put(device, dtype, stored, (5, 512))
    plain = put(device, dtype, stored, (5, 512), device.buffer_type)
    ids = tp.input("ids", (3,), tp.I32)
    chosen = {ids: np.array([4, 0, 2], np.int32)}

    found = run(backend, tp.get_rows(weight, ids), chosen)

    np.testing.assert_array_equal(found, run(backend, tp.get_rows(plain, ids), chosen))


def test_many_rows_are_decoded_by_several_threads_as_by_one(device):
    stored = stored_rows(tp.Q8_0, 700, 2048)

    weight = put(device, tp.Q8_0, stored, (700, 2048))

    assert weight.place is not None
    found = weight.place.buffer.expanded(weight, 0)[0, 0]
    wanted = gguf.quants.dequantize(stored, gguf.GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", [tp.F32, tp.F16, tp.BF16], ids=str)
def test_every_value_of_a_plain_type_comes_back_bit_by_bit(device, dtype):
    bits = np.arange(1 << 16, dtype=np.uint32) << (16 if dtype is tp.F32 else 0)
    stored = bits.astype(f"u{dtype.size}").view(dtype.storage)

    found = transfer.read(put(device, dtype, stored, (1 << 16,)))

    assert found.tobytes() == stored.tobytes()


def test_blocks_do_not_come_back_and_the_error_says_what_to_do(device):
    weight = put(device, tp.Q4_0, stored_rows(tp.Q4_0, 2, 32), (2, 32))

    with pytest.raises(tp.Unsupported) as caught:
        transfer.read(weight)

    assert str(caught.value) == (
        "<ExpandedBuffer cpu_f32, WEIGHTS 256 B>: <Tensor 'w', none, q4_0[2, 32]> is stored "
        "expanded to f32 and its q4_0 blocks are gone; read them where they came from, or place "
        "the tensor in 'cpu' memory"
    )


def test_expanded_memory_is_no_host_memory(device):
    weight = put(device, tp.F16, np.ones((2, 32), np.float16), (2, 32))

    with pytest.raises(tp.Unsupported) as caught:
        weight.numpy()

    assert str(caught.value) == (
        "<ExpandedBuffer cpu_f32, WEIGHTS 256 B>: holds tensors expanded to f32, not in their own "
        "layout; read() copies what can be given back"
    )


def test_integers_cannot_be_placed_in_expanded_memory(device):
    with pytest.raises(tp.Unsupported):
        allocate([leaf("ids", (4,), tp.I32)], device.expanded)


@pytest.mark.parametrize("dtype", [tp.Q4_0, tp.F16, tp.F32], ids=str)
def test_views_of_expanded_weights_show_the_same_elements(device, backend, dtype):
    stored = stored_rows(dtype, 6, 64)
    x = tp.input("x", (1, 32), tp.F32)
    values = {x: RNG.normal(size=(1, 32)).astype(np.float32)}
    weight = put(device, dtype, stored, (6, 64))
    plain = put(device, dtype, stored, (6, 64), device.buffer_type)

    found = run(backend, x @ weight[1:5:2, 32:].T, values)

    np.testing.assert_allclose(found, run(backend, x @ plain[1:5:2, 32:].T, values), rtol=1e-5)


def test_several_weights_share_an_expanded_buffer(device, backend):
    specs = [leaf("a", (2, 64), tp.Q8_0), leaf("b", (3, 64), tp.F32), leaf("c", (64,), tp.F16)]
    stored = [
        stored_rows(t.dtype, *t.shape) if t.rank == 2 else np.ones(64, np.float16) for t in specs
    ]
    (a, b, c), buffers = allocate(specs, device.expanded, usage=tp.WEIGHTS)
    for weight, data in zip((a, b, c), stored, strict=True):
        transfer.write(weight, data)
    x = tp.input("x", (1, 64), tp.F32)
    values = {x: np.full((1, 64), 0.5, np.float32)}

    found = run(backend, tp.mul(x, c) @ b.T, values)

    assert len(buffers.parts) == 1
    np.testing.assert_allclose(found[0], 0.5 * stored[1].sum(axis=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("way", ["run", "submit"])
def test_expanded_weight_among_the_outputs_of_a_schedule_has_its_values(device, way, dtype):
    data = np.arange(8, dtype=dtype).reshape(2, 4)
    x = tp.input("x", (2, 4), tp.F32)
    given = {x: np.ones((2, 4), np.float32)}
    with device.open() as stream:
        w = stream.place("w", data, usage=tp.WEIGHTS, buffer_type=device.expanded)
        with (
            tp.Scheduler([stream], parallel=True) as scheduler,
            scheduler.schedule([tp.add(x, x), w]) as schedule,
        ):
            found = (schedule.run if way == "run" else schedule.submit)(given)

            np.testing.assert_array_equal(found[w], data)

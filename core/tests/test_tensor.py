"""Frozen metadata: sizes in both orders, roles, data, and what tensors refuse to be."""

import dataclasses

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import allocate, place, place_in
from tensorplug.errors import Closed, NotAllocated
from tensorplug.graph.tensor import Place, array_view, contiguous_nb, leaf, ne_of, pad_ne
from tensorplug_testing.null import NullDevice


def x_(*shape: int, dtype: tp.DType = tp.F32) -> tp.Tensor:
    return tp.input("x", shape, dtype)


# --- sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "ne"),
    [
        ((), (1, 1, 1, 1)),
        ((5,), (5, 1, 1, 1)),
        ((2, 3), (3, 2, 1, 1)),
        ((2, 3, 4, 5), (5, 4, 3, 2)),
        ((2, 0), (0, 2, 1, 1)),
        ((1, 1, 4), (4, 1, 1, 1)),
    ],
)
def test_sizes_are_kept_in_both_orders_with_the_rank(shape, ne) -> None:
    x = x_(*shape)

    assert x.shape == shape
    assert x.ne == ne
    assert x.rank == len(shape)
    assert x.size == int(np.prod(shape))


@pytest.mark.parametrize("kind", [tp.F32, tp.F16, tp.BF16, tp.I8, tp.I64, tp.F64], ids=repr)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (2, 3, 4, 5), (1, 1, 4)])
def test_strides_are_those_of_numpy(shape, kind: tp.DType) -> None:
    array = np.empty(shape, kind.storage)

    x = x_(*shape, dtype=kind)

    assert x.strides == array.strides
    assert x.nbytes == array.nbytes
    assert x.is_contiguous
    assert x.has_contiguous_rows


@pytest.mark.parametrize(
    ("kind", "shape", "nb", "nbytes"),
    [
        (tp.Q4_0, (3, 64), (18, 36, 108, 108), 108),
        (tp.Q8_0, (2, 3, 32), (34, 34, 102, 204), 204),
        (tp.Q4_K, (512,), (144, 288, 288, 288), 288),
        (tp.Q4_0, (0, 64), (18, 36, 0, 0), 0),
    ],
)
def test_block_types_count_rows_in_blocks(kind, shape, nb, nbytes) -> None:
    x = x_(*shape, dtype=kind)

    assert x.nb == nb
    assert x.nbytes == nbytes
    assert x.is_contiguous


def test_rows_count_everything_but_the_fastest_dimension() -> None:
    assert x_(2, 3, 4).rows == 6


@pytest.mark.parametrize(
    ("make", "nbytes", "contiguous", "rows"),
    [
        (lambda x: x[1], 16, True, True),
        (lambda x: x[1:], 32, True, True),
        (lambda x: x[:, 1:3], 2 * 16 + 8, False, True),
        (lambda x: x[:, 1], 2 * 16 + 4, False, False),
        (lambda x: x[:, ::2], 2 * 16 + 12, False, False),
        (lambda x: x[::2], 32 + 16, False, True),
        (lambda x: x.T, 48, False, False),
        (lambda x: x[:0], 0, True, True),
        (lambda x: x[1, 1], 4, True, True),
        (lambda x: x.reshape(2, 6), 48, True, True),
    ],
)
def test_views_span_from_their_first_to_their_last_element(make, nbytes, contiguous, rows) -> None:
    view = make(x_(3, 4))

    assert view.nbytes == nbytes
    assert view.is_contiguous == contiguous
    assert view.has_contiguous_rows == rows


def test_strides_of_dimensions_of_size_one_do_not_count() -> None:
    x = x_(4, 1, 3)

    assert tp.permute(x, (1, 0, 2)).is_contiguous


def test_transposed_block_type_spans_what_it_is_a_view_of() -> None:
    w = x_(3, 64, dtype=tp.Q4_0)

    assert w.T.nbytes == w.nbytes
    assert w.T.shape == (64, 3)
    assert w.T.splits_blocks
    assert not w.T.is_contiguous
    assert not w.T.has_contiguous_rows


def test_square_transposed_block_type_is_not_taken_for_a_plain_one() -> None:
    w = x_(32, 32, dtype=tp.Q4_0)

    assert w.same_layout(w.T)
    assert not w.T.is_contiguous


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            (1, 2, 3, 4, 5),
            "tensor 'x': 5 dimensions (1, 2, 3, 4, 5); at most 4 are possible",
        ),
        ((2, -1), "tensor 'x': negative size in shape (2, -1)"),
        (
            (None, 4),
            "tensor 'x': shape (None, 4); sizes are integers, and a graph is made for one shape",
        ),
        (
            (2.5,),
            "tensor 'x': shape (2.5,); sizes are integers, and a graph is made for one shape",
        ),
    ],
)
def test_impossible_shapes_are_refused(shape, message: str) -> None:
    with pytest.raises(tp.ShapeError) as error:
        tp.input("x", shape, tp.F32)

    assert str(error.value) == message


def test_numpy_sizes_become_plain_integers() -> None:
    x = tp.input("x", tuple(np.array([2, 3])), tp.F32)

    assert all(type(n) is int for n in x.ne)


def test_huge_sizes_do_not_overflow() -> None:
    assert x_(1 << 40, 1 << 40).nbytes == 1 << 82


def test_padding_refuses_a_fifth_dimension() -> None:
    with pytest.raises(tp.ShapeError):
        pad_ne((1, 2, 3, 4, 5))


def test_helpers_agree_on_the_order() -> None:
    assert ne_of((2, 3), "here") == ((3, 2, 1, 1), 2)
    assert contiguous_nb(tp.F16, (3, 2, 1, 1)) == (2, 6, 12, 12)


# --- frozen ------------------------------------------------------------------------------------


def test_tensors_cannot_be_changed() -> None:
    x = x_(2)

    with pytest.raises(dataclasses.FrozenInstanceError):
        x.name = "y"


def test_tensors_are_compared_by_identity() -> None:
    a, b = x_(2), x_(2)

    assert a != b
    assert len({a, b, a}) == 2


def test_later_tensors_have_later_serials() -> None:
    a = x_(2)
    b = tp.relu(a)

    assert b.serial > a.serial


def test_named_returns_another_tensor_with_the_name() -> None:
    x = x_(2)

    y = tp.relu(x).named("y")

    assert y.name == "y"
    assert y.op == "relu"
    assert y.sources == (x,)


@pytest.mark.parametrize("use", [bool, lambda x: x or None, lambda x: not x])
def test_tensors_have_no_truth_value(use) -> None:
    with pytest.raises(TypeError) as error:
        use(x_(2))

    assert str(error.value) == (
        "<Tensor 'x', none, f32[2]>: is neither true nor false; compare with None, or read its data"
    )


def test_length_is_the_slowest_dimension() -> None:
    assert len(x_(2, 3)) == 2


def test_scalar_has_no_length() -> None:
    with pytest.raises(TypeError, match="a scalar has no length"):
        len(x_())


def test_iteration_gives_the_rows() -> None:
    rows = list(x_(3, 4))

    assert [(row.shape, row.view_offset) for row in rows] == [((4,), 0), ((4,), 16), ((4,), 32)]


# --- roles -------------------------------------------------------------------------------------


def test_roles_of_leafs_nodes_views_and_writes() -> None:
    x = x_(3, 4)
    view, node = x[1], tp.relu(x)
    write = tp.cpy(node, x)

    assert (x.is_leaf, x.is_view, x.is_input) == (True, False, True)
    assert (view.is_leaf, view.is_view, view.root) == (False, True, x)
    assert (node.is_leaf, node.is_view, node.root) == (False, False, node)
    assert (write.is_view, write.writes, write.root) == (False, True, x)


def test_view_of_a_view_names_the_root_and_adds_the_offsets() -> None:
    x = x_(4, 6)

    view = x[1:, 2:][1:, 1:]

    assert view.view_of is x
    assert view.view_offset == (1 * 6 + 2) * 4 + (1 * 6 + 1) * 4


def test_repr_says_name_op_type_and_shape() -> None:
    assert repr(x_(2, 3)) == "<Tensor 'x', none, f32[2, 3]>"
    node = tp.relu(x_(2))
    assert repr(node) == f"<Tensor relu #{node.serial}, f32[2]>"


# --- data --------------------------------------------------------------------------------------


@pytest.fixture
def persistent(host: NullDevice) -> tp.Tensor:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    return place("w", data, host.buffer_type)


def test_numpy_shows_host_memory_without_a_copy(persistent: tp.Tensor) -> None:
    persistent.numpy()[1, 2] = 100

    assert persistent.numpy()[1, 2] == 100
    assert persistent[1].numpy()[2] == 100


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[1],
        lambda x: x[:, 1],
        lambda x: x[::2, 1:3],
        lambda x: x.T,
        lambda x: x.T[1:3],
        lambda x: x.reshape(2, 6),
        lambda x: x.reshape(6, -1).T[1],
        lambda x: x[1, 2],
        lambda x: x[3:],
        lambda x: x[1:1, 2],
        lambda x: x,
    ],
)
def test_numpy_shows_views_as_numpy_would(persistent: tp.Tensor, view) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    wanted = view(array)

    found = view(persistent).numpy()

    assert found.shape == np.shape(wanted)
    np.testing.assert_array_equal(found, wanted)


def test_numpy_protocols_read_host_memory(persistent: tp.Tensor) -> None:
    wanted = np.arange(12, dtype=np.float32).reshape(3, 4)

    np.testing.assert_array_equal(np.asarray(persistent), wanted)
    np.testing.assert_array_equal(np.asarray(persistent, dtype=np.float64), wanted)
    np.testing.assert_array_equal(np.from_dlpack(persistent), wanted)
    np.testing.assert_array_equal(memoryview(persistent.__buffer__(0)), wanted)
    assert persistent.__dlpack_device__() == (1, 0)


def test_block_types_are_seen_as_bytes(host: NullDevice) -> None:
    (w,), _buffers = allocate([leaf("w", (3, 64), tp.Q4_0)], host.buffer_type)

    assert w.numpy().shape == (3, 36)
    assert w[1:].numpy().shape == (2, 36)
    assert w[:, 32:].numpy().strides == (36, 1)
    assert w.numpy().dtype == np.uint8


def test_transposed_block_type_cannot_be_seen(host: NullDevice) -> None:
    (w,), _buffers = allocate([leaf("w", (3, 64), tp.Q4_0)], host.buffer_type)

    transposed = w.T

    with pytest.raises(tp.ShapeError) as error:
        transposed.numpy()

    assert str(error.value) == (
        f"{transposed}: is a transposed block type, whose elements have no addresses; use {w}"
    )


def test_bf16_is_seen_as_its_bits(host: NullDevice) -> None:
    (w,), _buffers = allocate([leaf("w", (2, 3), tp.BF16)], host.buffer_type)

    assert w.numpy().dtype == np.uint16
    assert w.numpy().shape == (2, 3)


def test_tensor_without_memory_cannot_be_seen() -> None:
    with pytest.raises(NotAllocated) as error:
        x_(2).numpy()

    assert str(error.value) == (
        "<Tensor 'x', none, f32[2]>: has no memory of its own; read it from the results of a run"
    )


def test_device_memory_cannot_be_seen(null: NullDevice) -> None:
    w = place("w", np.ones(4, np.float32), null.buffer_type)

    with pytest.raises(NotAllocated) as error:
        w.numpy()

    assert str(error.value) == (
        "<NullBuffer null:0, ANY 64 B>: the host cannot see null:0 memory; read() copies it"
    )


def test_memory_of_a_closed_buffer_cannot_be_seen(persistent: tp.Tensor) -> None:
    persistent.place.buffer.close()

    with pytest.raises(Closed):
        persistent.numpy()


def test_array_view_refuses_memory_that_is_too_small() -> None:
    memory = np.zeros(64, np.uint8)

    with pytest.raises(tp.ShapeError) as error:
        array_view(x_(4, 4), memory, 16)

    assert str(error.value) == (
        "<Tensor 'x', none, f32[4, 4]>: needs bytes 16 to 80 of a buffer of 64 bytes"
    )


def test_array_view_of_read_only_memory_is_read_only() -> None:
    memory = np.frombuffer(bytes(16), np.uint8)

    array = array_view(x_(4), memory, 0)

    assert not array.flags.writeable


def test_storage_is_seen_where_it_lies(host: NullDevice) -> None:
    buffer = host.buffer_type.alloc(256)
    x = place_in(leaf("x", (4,), tp.F32), buffer, 64)
    buffer.write(64, np.arange(4, dtype=np.float32))

    np.testing.assert_array_equal(x.numpy(), [0, 1, 2, 3])
    assert x.place == Place(buffer, 64)

"""Which bytes work touches, and which ranges of bytes overlap."""

from collections.abc import Iterator

import pytest

import tensorplug as tp
from tensorplug.device import Buffer
from tensorplug.device.ranges import Access, Range, accesses, clash_within_stage, range_of
from tensorplug.fusion.matching import find_groups
from tensorplug.graph.bindings import Bindings
from tensorplug.graph.tensor import Place
from tensorplug_testing.null import NullDevice


@pytest.fixture
def memory(null: NullDevice) -> Iterator[Buffer]:
    with null.buffer_type.alloc(1024) as buffer:
        yield buffer


# --- ranges ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        ((0, 64), (0, 64), True),
        ((0, 64), (63, 64), True),
        ((0, 64), (64, 128), False),
        ((64, 128), (0, 64), False),
        ((0, 256, 16, 64), (16, 256, 16, 64), False),
        ((0, 256, 16, 64), (15, 256, 16, 64), True),
        ((0, 256, 16, 64), (48, 256, 16, 64), False),
        ((0, 256, 16, 64), (56, 256, 16, 64), True),
        ((0, 256, 16, 64), (128, 256, 16, 64), True),
        ((0, 256, 16, 64), (0, 256, 16, 32), True),
        ((0, 256, 16, 64), (80, 112), False),
        ((0, 256, 16, 64), (80, 130), True),
        ((80, 112), (0, 256, 16, 64), False),
    ],
)
def test_ranges_overlap_where_they_may_share_a_byte(
    memory: Buffer, first: tuple[int, ...], second: tuple[int, ...], overlap: bool
) -> None:
    assert Range(memory, *first).overlaps(Range(memory, *second)) is overlap


def test_ranges_of_two_buffers_never_overlap(null: NullDevice, memory: Buffer) -> None:
    with null.buffer_type.alloc(64) as other:
        assert not Range(memory, 0, 64).overlaps(Range(other, 0, 64))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((slice(None), slice(0, 4)), (slice(None), slice(4, 8))),
        ((slice(None), slice(0, 2)), (slice(None), slice(6, 8))),
        ((slice(0, 2), slice(None)), (slice(2, 4), slice(None))),
    ],
)
def test_columns_and_rows_of_one_matrix_are_apart(
    memory: Buffer, first: tuple[slice, slice], second: tuple[slice, slice]
) -> None:
    whole = tp.input("whole", (4, 8), tp.F32)
    bound = Bindings({whole: Place(memory, 128)})
    a, b = whole[first], whole[second]

    assert not range_of(a, bound.where(a)).overlaps(range_of(b, bound.where(b)))
    assert range_of(a, bound.where(a)).overlaps(range_of(whole, bound.where(whole)))


def test_transposed_columns_count_as_their_span(memory: Buffer) -> None:
    whole = tp.input("whole", (4, 8), tp.F32)
    bound = Bindings({whole: Place(memory, 0)})
    left, right = whole[:, :4].T, whole[:, 4:].T

    assert range_of(left, bound.where(left)).overlaps(range_of(right, bound.where(right)))


# --- accesses ----------------------------------------------------------------------------------


def test_node_reads_its_sources_and_writes_itself(memory: Buffer) -> None:
    x, w = tp.input("x", (4, 4), tp.F32), tp.input("w", (4, 4), tp.F32)
    y = x + w
    bound = Bindings({t: Place(memory, 64 * i) for i, t in enumerate((x, w, y))})

    found = [(a.range.start, a.range.end, a.writes) for a in accesses(y, bound)]

    assert found == [(0, 64, False), (64, 128, False), (128, 192, True)]


def test_write_into_a_view_touches_the_view_only(memory: Buffer) -> None:
    cache, x = tp.input("cache", (8, 4), tp.F32), tp.input("x", (2, 4), tp.F32)
    write = tp.cpy(x, cache[2:4])
    bound = Bindings({cache: Place(memory, 256), x: Place(memory, 0)})

    written = [a.range for a in accesses(write, bound) if a.writes]

    assert written == [Range(memory, 256 + 32, 256 + 64)]


def test_sources_that_are_written_too_are_writes(memory: Buffer) -> None:
    x, m, v, g = (tp.input(n, (4,), tp.F32) for n in "xmvg")
    settings = tp.input("settings", (7,), tp.F32)
    step = tp.opt_step_adamw(x, g, m, v, settings)
    bound = Bindings({t: Place(memory, 64 * i) for i, t in enumerate((x, m, v, g, settings))})

    written = {a.range.start for a in accesses(step, bound) if a.writes}

    assert written == {0, 64, 128}


def test_group_reads_its_inputs_and_writes_its_outputs_alone(
    null: NullDevice, memory: Buffer
) -> None:
    x, w = tp.input("x", (4, 4), tp.F32), tp.input("w", (4, 4), tp.F32)
    y = tp.rms_norm(x) * w
    (group,) = find_groups(tp.Graph(y), null.fusions)
    bound = Bindings({t: Place(memory, 64 * i) for i, t in enumerate((x, w, y))})

    found = {(a.range.start, a.writes) for a in accesses(group, bound)}

    assert found == {(0, False), (64, False), (128, True)}


def test_reads_of_the_same_bytes_do_not_conflict(memory: Buffer) -> None:
    x = tp.input("x", (4, 4), tp.F32)
    y, z = tp.relu(x), tp.sqr(x)
    bound = Bindings({t: Place(memory, 64 * i) for i, t in enumerate((x, y, z))})

    assert clash_within_stage((y, z), bound) is None


def test_read_of_what_is_written_conflicts_both_ways(memory: Buffer) -> None:
    x = tp.input("x", (4, 4), tp.F32)
    y = tp.relu(x)
    z = tp.sqr(y)
    bound = Bindings({t: Place(memory, 64 * i) for i, t in enumerate((x, y, z))})

    assert clash_within_stage((y, z), bound) is not None
    assert clash_within_stage((z, y), bound) is not None


def test_access_says_who_does_what_to_which_bytes(memory: Buffer) -> None:
    access = Access(Range(memory, 0, 256, 16, 64), "x", "relu", writes=True)

    assert str(access).startswith("relu writes x, bytes 0 to 256, 16 of every 64 of <NullBuffer")

"""Which launches stand on which stream, and what each waits for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorplug.device.ranges import Host, Range
from tensorplug.planning import footprints
from tensorplug_cuda.branches import Touch, spread


def span(start: int, length: int) -> Range:
    return Range(Host.MEMORY, start, start + length)


def launch(reads: str, writes: str) -> list[Touch]:
    """What a launch touches: 16 bytes for each letter."""
    return [
        (span(16 * ord(c), 16), written)
        for written, text in ((False, reads), (True, writes))
        for c in text
    ]


def conflict(one: list[Touch], other: list[Touch]) -> bool:
    """Whether the order of two launches matters."""
    return any((w or v) and a.overlaps(b) for a, w in one for b, v in other)


def after(branches) -> list[set[int]]:
    """For each launch all that come before it, directly or by way of others."""
    found: list[set[int]] = []
    ends: dict[int, int] = {}
    for turn in branches.turns:
        before = [*turn.waits, *([ends[turn.stream]] if turn.stream in ends else [])]
        ends[turn.stream] = len(found)
        found.append({j for i in before for j in (i, *found[i])})
    return found


def test_launches_in_a_row_stay_on_one_stream():
    branches = spread([launch("a", "b"), launch("b", "c"), launch("c", "d")], 4)

    assert branches.turns == ((0, ()), (0, ()), (0, ()))
    assert (branches.streams, branches.longest) == (1, 3)


def test_launches_that_read_the_same_fork_and_join_again():
    found = [launch("x", "a"), launch("a", "b"), launch("a", "c"), launch("bc", "d")]

    branches = spread(found, 4)

    assert branches.turns == ((0, ()), (0, ()), (1, (0,)), (1, (1,)))
    assert (branches.streams, branches.longest) == (2, 3)


def test_branch_of_two_launches_stays_on_its_stream():
    found = [launch("x", "a"), launch("x", "b"), launch("a", "c"), launch("b", "d")]

    branches = spread(found, 2)

    assert branches.turns == ((0, ()), (1, ()), (0, ()), (1, ()))


def test_launch_waits_for_no_more_than_it_must():
    found = [launch("x", "a"), launch("x", "b"), launch("ab", "c"), launch("abc", "d")]

    branches = spread(found, 3)

    assert branches.turns[3] == (branches.turns[2].stream, ())


def test_stream_whose_work_is_waited_for_anyway_is_used_again():
    found = [launch("x", "a"), launch("x", "b"), launch("ab", "c"), launch("c", "d")]
    found += [launch("c", "e")]

    branches = spread(found, 8)

    assert branches.streams == 2


@pytest.mark.parametrize(("streams", "longest"), [(1, 6), (2, 3), (3, 2), (8, 1)])
def test_no_more_streams_are_used_than_there_are(streams, longest):
    branches = spread([launch("x", c) for c in "abcdef"], streams)

    assert (branches.streams, branches.longest) == (min(streams, 6), longest)


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        (launch("a", "b"), launch("a", "c"), True),
        (launch("a", "b"), launch("b", "c"), False),
        (launch("a", "b"), launch("c", "a"), False),
        (launch("a", "b"), launch("c", "b"), False),
        (launch("a", "bs"), launch("c", "ds"), False),
    ],
    ids=[
        "read the same",
        "reads the result",
        "writes what was read",
        "same result",
        "same scratch",
    ],
)
def test_launches_are_side_by_side_unless_one_writes_what_the_other_touches(first, second, apart):
    branches = spread([first, second], 2)

    assert (branches.streams == 2) is apart


LAUNCHES = st.lists(
    st.lists(
        st.tuples(st.builds(span, st.integers(0, 40), st.integers(1, 12)), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    max_size=25,
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(LAUNCHES, st.integers(1, 5), st.sampled_from([1, 2, 32]))
def test_order_of_launches_is_kept_where_it_matters(launches, streams, many):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(footprints, "MANY", many)
        branches = spread(launches, streams)

    before = after(branches)
    assert [
        (i, j)
        for j in range(len(launches))
        for i in range(j)
        if i not in before[j] and conflict(launches[i], launches[j])
    ] == []


@settings(max_examples=100, deadline=None, derandomize=True)
@given(LAUNCHES)
def test_with_enough_streams_nothing_waits_without_need(launches):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(footprints, "MANY", 1000)
        before = after(spread(launches, max(len(launches), 1)))

    needed: list[set[int]] = []
    for j, later in enumerate(launches):
        met = [i for i in range(j) if conflict(launches[i], later)]
        needed.append({k for i in met for k in (i, *needed[i])})
    assert before == needed

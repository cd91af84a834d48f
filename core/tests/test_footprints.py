"""Footprints: nothing that matters is forgotten, and many on the same bytes become one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorplug as tp
from tensorplug.device.ranges import Range
from tensorplug.planning import footprints
from tensorplug.planning.footprints import Footprints
from tensorplug_testing.null import NullDevice


@dataclass(frozen=True)
class Touch:
    """An access: from a byte on, its length, the stride of its columns or 0, and its kind."""

    start: int
    length: int
    stride: int
    writes: bool

    def of(self, memory: tp.Buffer) -> Range:
        width = min(3, self.length) if self.stride else 0
        stride = self.stride
        return Range(memory, self.start, self.start + self.length, width, stride)


TOUCHES = st.lists(
    st.builds(
        Touch, st.integers(0, 40), st.integers(1, 16), st.sampled_from([0, 0, 8]), st.booleans()
    ),
    max_size=25,
)


@pytest.fixture(scope="module")
def memory() -> Iterator[tp.Buffer]:
    with NullDevice() as device, device.buffer_type.alloc(64) as buffer:
        yield buffer


def followed(memory: tp.Buffer, touches: list[Touch]) -> list[set[int]]:
    """For each access those that it comes after, directly or by way of others."""
    behind: dict[int, set[int]] = {}

    def join(numbers: object) -> int:
        made = 1000 + len(behind)
        behind[made] = {m for n in numbers for m in (n, *behind[n])}  # type: ignore[attr-defined]
        return made

    trail = Footprints(join)
    for number, touch in enumerate(touches):
        span = touch.of(memory)
        found = trail.clashes(span, writes=touch.writes)
        behind[number] = {m for n in found for m in (n, *behind[n])}
        trail.add(span, number, writes=touch.writes)
    return [behind[number] for number in range(len(touches))]


def forgotten(memory: tp.Buffer, touches: list[Touch]) -> list[tuple[int, int]]:
    """Accesses that must keep their order and that nothing keeps in it."""
    spans = [touch.of(memory) for touch in touches]
    behind = followed(memory, touches)
    return [
        (first, then)
        for then in range(len(touches))
        for first in range(then)
        if (touches[first].writes or touches[then].writes)
        and spans[first].overlaps(spans[then])
        and first not in behind[then]
    ]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(TOUCHES, st.sampled_from([1, 2, 4, 32]))
def test_nothing_that_matters_is_forgotten(
    memory: tp.Buffer, touches: list[Touch], many: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(footprints, "MANY", many)

        assert forgotten(memory, touches) == []


def test_forgetting_what_is_not_written_over_is_found(
    memory: tp.Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    touches = [Touch(0, 32, 0, writes=False), *(Touch(n, 8, 0, writes=True) for n in (0, 8))]
    monkeypatch.setattr(footprints, "covers", lambda *_: True)

    assert forgotten(memory, touches) == [(0, 2)]


def test_columns_of_one_matrix_do_not_meet(memory: tp.Buffer) -> None:
    trail = Footprints(max)
    trail.add(Range(memory, 0, 64, 4, 8), 1, writes=True)

    assert trail.clashes(Range(memory, 4, 64, 4, 8), writes=True) == []


@pytest.mark.parametrize(
    "place",
    [lambda n: (0, 64), lambda n: (n, n + 1), lambda n: (0, n + 1)],
    ids=["the same bytes", "side by side", "more and more"],
)
def test_looks_stay_few_where_many_touch_the_same_memory(
    memory: tp.Buffer, looks: list[Range], place: Callable[[int], tuple[int, int]]
) -> None:
    trail = Footprints(max)
    for number in range(2000):
        span = Range(memory, *place(number))
        trail.clashes(span, writes=bool(number % 2))
        trail.add(span, number, writes=bool(number % 2))

    assert len(looks) <= 2000 * footprints.MANY

"""Split rules: how an op runs on parts of its sources, one part on each of several devices.

A tensor of a group of devices is MIRRORED (each has all of it), split along one of its dimensions
(`ne` order; each has a slice), or PARTIAL (each has a summand of it). The rule of an op lists the
ways in which it runs with nothing exchanged: what its sources are, and what the result is then.
"""

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorplug.errors import Refusal

if TYPE_CHECKING:
    from tensorplug.graph.tensor import Tensor, Value
    from tensorplug.ops.table import Call

AXES = (0, 1, 2, 3)


class Share(enum.Enum):
    """What each device has of a tensor that is not cut along a dimension."""

    MIRRORED = "mirrored"
    PARTIAL = "partial"

    def __repr__(self) -> str:
        return self.value


MIRRORED, PARTIAL = Share.MIRRORED, Share.PARTIAL
State = int | Share
"""The dimension along which a tensor is cut, or MIRRORED, or PARTIAL."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run an op on parts: sources that are not named are mirrored.

    `within` is the range along the cut dimension of the first source that the result covers, for
    results that do not cover all of it.
    """

    sources: Mapping[str, State]
    result: State
    within: tuple[int, int] | None = None


SplitRule = Callable[["Call"], Iterable[Way]]


@dataclass(frozen=True, slots=True)
class Part:
    """One device's part of a use of an op: its sources, and `size` of the cut result dimension.

    `begin` is where the range `way.within` starts in this device's slice of the first source.
    """

    way: Way
    operands: "tuple[Tensor | None, ...]"
    size: int
    begin: int = 0


PartRule = Callable[["Call", Part], "Mapping[str, Value]"]
"""The parameters of a part, from those of the whole."""


def resized(call: "Call", part: Part) -> "Mapping[str, Value]":
    """Where the parameter `ne` gives the sizes of the result, it gives those of its slice."""
    ne, axis = call.params.get("ne"), part.way.result
    if not isinstance(ne, tuple) or not ne or not isinstance(axis, int):
        return call.params
    return {**call.params, "ne": (*ne[:axis], part.size, *ne[axis + 1 :])}


def whole(_call: "Call") -> Iterable[Way]:
    """Every element of the result may need every element of the sources."""
    return ()


def aligned(*names: str, axes: Sequence[int] = AXES) -> SplitRule:
    """Indices along each of `axes` have nothing to do with each other, in sources and result.

    A source of size 1 along the axis is mirrored; one that repeats some other number of times rules
    the axis out.
    """

    def rule(call: "Call") -> Iterator[Way]:
        present = {name: tensor for name in names if (tensor := call.get(name)) is not None}
        size = next(iter(present.values())).ne
        for axis in axes:
            sizes = {name: tensor.ne[axis] for name, tensor in present.items()}
            if size[axis] > 1 and all(n in (1, size[axis]) for n in sizes.values()):
                cut = {name: axis for name, n in sizes.items() if n == size[axis] and n > 1}
                yield Way(cut, axis)

    return rule


def linear(*names: str) -> SplitRule:
    """The result for a sum of sources is the sum of the results: summands give summands."""
    return ways(Way(dict.fromkeys(names, PARTIAL), PARTIAL))


def ways(*given: Way) -> SplitRule:
    """Always these."""
    return lambda _call: given


def any_of(*rules: SplitRule) -> SplitRule:
    """The ways of all `rules`."""
    return lambda call: [way for rule in rules for way in rule(call)]


def split_state(call: "Call", states: Sequence[State | None]) -> State | Refusal:
    """What the result of a use of an op is where its sources are in `states`, or why nothing.

    There is one state for each source, None for an absent one.
    """
    named = {
        source.name: state
        for source, state in zip(call.op.sources, states, strict=True)
        if state is not None
    }
    if all(state is MIRRORED for state in named.values()):
        return MIRRORED
    known = [way for way in call.op.split(call) if all(n in named for n in way.sources)]
    for way in known:
        if all(way.sources.get(name, MIRRORED) == state for name, state in named.items()):
            return way.result
    given = _described(named)
    if not known:
        return Refusal(f"{call.op.name}: has {given}, but every device needs its sources whole")
    could = "; ".join(_described(way.sources) for way in known)
    return Refusal(f"{call.op.name}: has {given}; it runs on parts with {could}")


def _described(states: Mapping[str, State]) -> str:
    cut = [
        f"{name} {'partial' if state is PARTIAL else f'split along {state}'}"
        for name, state in states.items()
        if state is not MIRRORED
    ]
    return " and ".join(cut)

"""Split rules: how an op runs on shards of its sources, one shard on each of several devices.

A tensor of several devices is MIRRORED (each device has all of it), split along one dimension in
`ne` order (each device has a slice), or PARTIAL (each device has a summand). The rule of an op
lists the ways in which the op runs without an exchange between devices: a state for each source,
and the state of the result that follows.
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
    """The state of a tensor that is not cut along a dimension."""

    MIRRORED = "mirrored"
    PARTIAL = "partial"

    def __repr__(self) -> str:
        return self.value


MIRRORED, PARTIAL = Share.MIRRORED, Share.PARTIAL
Axis = int | Share
"""The dimension along which a tensor is cut, or MIRRORED, or PARTIAL."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run an op on shards. Sources that are not named are mirrored.

    `within` is for results that cover only a part of the first source: the range of the cut
    dimension of that source that the result covers.
    """

    sources: Mapping[str, Axis]
    result: Axis
    within: tuple[int, int] | None = None


SplitRule = Callable[["Call"], Iterable[Way]]


@dataclass(frozen=True, slots=True)
class Shard:
    """The share of one device in a use of an op: its sources, and `size` of the cut dimension.

    `begin` is where the range `way.within` starts in this device's slice of the first source.
    """

    way: Way
    operands: "tuple[Tensor | None, ...]"
    size: int
    begin: int = 0


ShardRule = Callable[["Call", Shard], "Mapping[str, Value]"]
"""A function from the whole call and one shard to the parameters of that shard."""


def resized(call: "Call", shard: Shard) -> "Mapping[str, Value]":
    """Replace the cut size in the parameter `ne`, if there is one, by the size of the slice."""
    ne, axis = call.params.get("ne"), shard.way.result
    if not isinstance(ne, tuple) or not ne or not isinstance(axis, int):
        return call.params
    return {**call.params, "ne": (*ne[:axis], shard.size, *ne[axis + 1 :])}


def whole(_call: "Call") -> Iterable[Way]:
    """The op does not run on shards: any element may depend on all elements of the sources."""
    return ()


def aligned(*names: str, axes: Sequence[int] = AXES) -> SplitRule:
    """Along each of `axes`, index i of the result depends only on index i of the sources `names`.

    A source of size 1 along the axis is mirrored. An axis along which a source repeats in any other
    way cannot be cut.
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
    """The op is linear in the sources `names` together: summands of these give summands."""
    return ways(Way(dict.fromkeys(names, PARTIAL), PARTIAL))


def ways(*given: Way) -> SplitRule:
    """These ways, for every call."""
    return lambda _call: given


def any_of(*rules: SplitRule) -> SplitRule:
    """The ways of all `rules`."""
    return lambda call: [way for rule in rules for way in rule(call)]


def result_axis(call: "Call", states: Sequence[Axis | None]) -> Axis | Refusal:
    """The state of the result if the sources are in `states`, or the reason why there is none.

    `states` has one entry for each source, None for an absent source.
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
        return Refusal(f"{call.op.name}: has {given}, but it needs whole sources on every device")
    could = "; ".join(_described(way.sources) for way in known)
    return Refusal(f"{call.op.name}: has {given}; it runs on shards with {could}")


def _described(states: Mapping[str, Axis]) -> str:
    cut = [
        f"{name} {'partial' if state is PARTIAL else f'split along {state}'}"
        for name, state in states.items()
        if state is not MIRRORED
    ]
    return " and ".join(cut)

"""Fusion: `Pattern`s of nodes that one kernel may compute, and the `Group`s found in a graph.

The module `matching` finds the groups. A pattern is written as a formula, one line for each node:

    pattern("norm_mul", "normed = rms_norm(x)", "scaled = mul(normed, weight)")

The names on the left are the pattern's steps. Other names are inputs of the group. The sources of
`add` and `mul` match in either order. `a|b` means one of the ops `a` and `b`. `~step` means the
value of a step or a reshaped view of it. `_` matches any source, present or absent. `-` means that
the source must be absent. Sources that a line does not mention are not checked. A line that starts
with `?` is optional: without the node, the line's first source takes the place of its result.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tensorplug.errors import GraphError
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.table import OPS

COMMUTATIVE = frozenset({"add", "mul"})
"""Ops whose first two sources may be swapped."""
FUSION = "TENSORPLUG_FUSION"
"""The environment variable that switches fusion off when it is 0."""

MANY = 64
"""The number of sources assumed for an op that is not in the op table."""

_LINE = re.compile(r"(\w+) = ([\w|.]+)\(([^()]*)\)")

Steps = dict[str, "Step"]
"""The steps of one variant by name, in order."""
Bound = Mapping[str, Tensor]
"""The tensor bound to each name of a variant; names that are not bound yet are absent."""


@dataclass(frozen=True, slots=True)
class Step:
    """One node of a pattern: its name, the ops it may be, and where its sources come from."""

    name: str
    ops: tuple[str, ...]
    sources: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} = {'|'.join(self.ops)}({', '.join(self.sources)})"


@dataclass(frozen=True, slots=True)
class Condition:
    """A test of the tensors bound to `names`; `text` is the test in words."""

    text: str
    names: tuple[str, ...]
    test: Callable[..., bool]

    def met(self, bound: Bound) -> bool:
        """True if the tensors of a match pass the test, or if one of `names` is not bound."""
        found = [bound[name] for name in self.names if name in bound]
        return len(found) < len(self.names) or self.test(*found)


@dataclass(frozen=True, slots=True)
class Slot:
    """One source of a step, as the pattern writes it."""

    name: str
    """The name in the pattern; empty if any source matches, `-` if the source must be absent."""
    reshaped: bool
    """True if a reshaped view of the tensor called `name` matches too."""
    ops: frozenset[str] | None
    """The ops of the step called `name`; None if `name` is an input of the group."""


@dataclass(frozen=True, slots=True)
class Form:
    """A variant of a pattern, preprocessed for matching."""

    pattern: "Pattern"
    steps: Mapping[str, Step]
    slots: Mapping[str, tuple[Slot, ...]]
    last: str
    needs: Mapping[str, int]
    """The number of nodes of each op that a graph needs for a match; views are not counted."""
    most_readers: Mapping[str, int]
    """For each step that is not an output: the most readers that it can have inside the group."""


@dataclass(frozen=True)
class Pattern:
    """Nodes that a device may compute with one kernel, in one or several variants.

    The result of each variant is its last step; every other step leads to it. `outputs` are further
    steps whose values may be read outside the group, so a kernel writes them too. `unread` are
    views of outputs that nothing outside the group reads: a kernel may leave those bytes unwritten.
    `in_place` names inputs that the kernel reads elementwise: it reads element i only to compute
    element i of the result, so the result may overwrite the input's memory. A device refuses a
    group that its kernel cannot compute in `refuses_group`.
    """

    name: str
    variants: tuple[tuple[Step, ...], ...]
    where: tuple[Condition, ...] = ()
    outputs: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for steps in self.variants:
            _check(self.name, steps)

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """The variants, preprocessed for matching."""
        return tuple(_form(self, {step.name: step for step in v}) for v in self.variants)

    def __str__(self) -> str:
        return f"{self.name}: {'; '.join(map(str, self.variants[0]))}"


@dataclass(frozen=True)
class Group:
    """Nodes that one kernel computes together, at the position of the last node.

    `nodes` are in execution order, without views. `outputs` get memory; the other nodes get none.
    An output may be a view of a node. `inputs` are tensors from outside the group that the nodes
    read. `group["weight"]` is the tensor that the pattern calls `weight`.
    """

    pattern: Pattern
    tensors: Mapping[str, Tensor]
    nodes: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]

    @property
    def last(self) -> Tensor:
        """The last node: the group runs at its position in the execution order."""
        return self.nodes[-1]

    @cached_property
    def inner(self) -> frozenset[Tensor]:
        """Nodes without memory: nothing outside the group reads their values."""
        roots = {t.root for t in self.outputs}
        return frozenset(n for n in self.nodes if n.root not in roots)

    @property
    def replaceable(self) -> tuple[Tensor, ...]:
        """Inputs whose memory the result may overwrite."""
        return tuple(self.tensors[n] for n in self.pattern.in_place if n in self.tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def get(self, name: str) -> Tensor | None:
        """Return the tensor that the pattern calls `name`, or None if this variant has none."""
        return self.tensors.get(name)

    def __repr__(self) -> str:
        return f"<Group {self.pattern.name}: {' + '.join(n.op for n in self.nodes)}>"


# --- making patterns ---------------------------------------------------------------------------


def pattern(
    name: str,
    *lines: str,
    where: Iterable[Condition] = (),
    outputs: Iterable[str] = (),
    in_place: Iterable[str] = (),
    unread: Iterable[str] = (),
) -> Pattern:
    """Return the pattern of `lines`, with a variant for each subset of the optional lines.

    `where` are conditions on a match; `Pattern` explains the other arguments. Raises GraphError.
    """
    named = (tuple(names) for names in (outputs, in_place, unread))
    return Pattern(name, variants(*lines), tuple(where), *named)


def variants(*lines: str) -> tuple[tuple[Step, ...], ...]:
    """All variants of `lines`, the longest first. Raises GraphError for a malformed line."""
    choices = [(True, False) if line.startswith("?") else (True,) for line in lines]
    found = [_chosen(lines, taken) for taken in itertools.product(*choices)]
    return tuple(sorted(found, key=len, reverse=True))


def _chosen(lines: Sequence[str], taken: Sequence[bool]) -> tuple[Step, ...]:
    stands_for: dict[str, str] = {}
    steps = []
    for line, take in zip(lines, taken, strict=True):
        step = _parse(line.removeprefix("?").strip())
        sources = tuple(_renamed(s, stands_for) for s in step.sources)
        if take:
            steps.append(Step(step.name, step.ops, sources))
        else:
            stands_for[step.name] = sources[0]
    return tuple(steps)


def _renamed(source: str, stands_for: Mapping[str, str]) -> str:
    plain = source.removeprefix("~")
    if plain not in stands_for:
        return source
    return "~" + stands_for[plain].removeprefix("~") if source != plain else stands_for[plain]


def _parse(line: str) -> Step:
    found = _LINE.fullmatch(line)
    if found is None:
        raise GraphError(f"pattern: {line!r} is not a line like 'scaled = mul(normed, weight)'")
    name, ops, sources = found.groups()
    named = tuple(s.strip() for s in sources.split(",") if s.strip())
    return Step(name, tuple(ops.split("|")), named)


def _check(name: str, steps: Sequence[Step]) -> None:
    known = {step.name for step in steps}
    read = {s.removeprefix("~") for step in steps for s in step.sources}
    lost = [s.name for s in steps[:-1] if s.name not in read]
    if lost or len(known) < len(steps) or len(steps) < 2:
        raise GraphError(
            f"pattern {name}: {'; '.join(map(str, steps))}: needs two or more steps with different "
            "names, all of which lead to the last"
        )


def _form(whole: Pattern, steps: Steps) -> Form:
    last = next(reversed(steps))
    slots = {name: tuple(_slot(source, steps) for source in s.sources) for name, s in steps.items()}
    named = Counter(slot.name for of_step in slots.values() for slot in of_step)
    # A source without a name in the form may be a view of a step: it counts as a possible reader.
    free = named[""] + sum(_arity(s.ops) - len(s.sources) for s in steps.values())
    inner = [name for name in steps if name != last and name not in whole.outputs]
    needs = Counter(s.ops[0] for s in steps.values() if len(s.ops) == 1 and not _views(s.ops[0]))
    return Form(whole, steps, slots, last, needs, {name: named[name] + free for name in inner})


def _slot(source: str, steps: Steps) -> Slot:
    name = source.removeprefix("~")
    ops = frozenset(steps[name].ops) if name in steps else None
    return Slot("" if name == "_" else name, name != source, ops)


def _arity(ops: Iterable[str]) -> int:
    """The largest number of sources that one of `ops` takes."""
    return max(len(OPS[op].sources) if op in OPS else MANY for op in ops)


def _views(op: str) -> bool:
    return op not in OPS or OPS[op].is_view


def same_shape(*names: str) -> Condition:
    """The tensors called `names` have the same shape: none is broadcast."""
    return Condition(
        f"{', '.join(names)} have one shape", names, lambda *ts: len({t.ne for t in ts}) == 1
    )


def single(name: str) -> Condition:
    """The tensor called `name` has one element."""
    return Condition(f"{name} has one element", (name,), lambda t: t.size == 1)


def param(step: str, name: str, value: object) -> Condition:
    """The parameter `name` of `step` is `value`."""
    return Condition(f"{name} of {step} is {value}", (step,), lambda t: t.params[name] == value)


def leading(part: str, whole: str) -> Condition:
    """`part` is a view of the first elements of each row of `whole`."""
    return Condition(
        f"{part} begins each row of {whole}",
        (part, whole),
        lambda p, w: (p.view_offset, p.nb, p.ne[1:]) == (w.view_offset, w.nb, w.ne[1:]),
    )

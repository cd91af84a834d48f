"""Fusion: `Pattern`s of nodes that one kernel may compute, and the `Group`s found in a graph.

`matching` finds them.

A pattern reads like its formula, one line for each node:

    pattern("norm_mul", "normed = rms_norm(x)", "scaled = mul(normed, weight)")

Names on the left are the pattern's steps; other names are what the group reads. `add` and `mul`
match either way round. `a|b` are ops of which any will do, `~step` is the value of a step perhaps
reshaped, `_` is anything, `-` says that the source must be absent, and sources not mentioned are
free. A line that starts with `?` is optional: where it is left out, its first source stands for it.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tensorplug.errors import GraphError, Refusal
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.table import OPS

COMMUTATIVE = frozenset({"add", "mul"})
"""Ops whose first two sources may change places."""
FUSION = "TENSORPLUG_FUSION"
"""The environment variable that switches fusion off when it is 0."""

MANY = 64
"""Sources of an op that is not known."""

_LINE = re.compile(r"(\w+) = ([\w|.]+)\(([^()]*)\)")

Steps = dict[str, "Step"]
"""The steps of one variant by name, in order."""
Bound = Mapping[str, Tensor]
"""What each name of a variant stands for, as far as it is known."""


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
    """What the tensors called `names` must fulfil, in words; met where one of them is absent."""

    text: str
    names: tuple[str, ...]
    test: Callable[..., bool]

    def met(self, bound: Bound) -> bool:
        """Whether the tensors of a match fulfil it."""
        found = [bound[name] for name in self.names if name in bound]
        return len(found) < len(self.names) or self.test(*found)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a source of a step comes from, as a pattern writes it."""

    name: str
    """Empty where the source may be anything, `-` where it must be absent."""
    reshaped: bool
    ops: frozenset[str] | None
    """Those of the step called `name`; None where it is none."""


@dataclass(frozen=True, slots=True)
class Form:
    """A variant of a pattern, ready to be looked for."""

    pattern: "Pattern"
    steps: Mapping[str, Step]
    slots: Mapping[str, tuple[Slot, ...]]
    last: str
    needs: Mapping[str, int]
    """How many nodes of which op there must be, views apart."""
    most_readers: Mapping[str, int]
    """How many readers a step may have of which the form knows; for steps seen inside alone."""


@dataclass(frozen=True)
class Pattern:
    """Nodes that a device may compute as one, in one or several variants.

    Each variant ends in its last step, on which all others lead. `outputs` are further steps whose
    values may be read outside: they are always computed, but for their parts `unread`: steps that
    look at bytes of an output which nothing else reads. `in_place` are what the group reads at
    no place but the one where it then writes its result, so that this may be laid over it. What
    a device's kernel cannot do is for its `supports_group` to refuse.
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
        """Its variants, ready to be looked for."""
        return tuple(_form(self, {step.name: step for step in v}) for v in self.variants)

    def __str__(self) -> str:
        return f"{self.name}: {'; '.join(map(str, self.variants[0]))}"


@dataclass(frozen=True)
class Group:
    """Nodes that are computed together, at the place of the last one.

    `nodes` are in execution order, without views. `outputs` need memory, the others have none;
    an output may be a view of a node. `inputs` are tensors from outside that the nodes read. The
    tensors of the pattern's names are at hand as `group["weight"]`.
    """

    pattern: Pattern
    tensors: Mapping[str, Tensor]
    nodes: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]

    @property
    def last(self) -> Tensor:
        """The node at whose place the group runs."""
        return self.nodes[-1]

    @cached_property
    def inner(self) -> frozenset[Tensor]:
        """Nodes that get no memory: nothing outside the group sees their values."""
        roots = {t.root for t in self.outputs}
        return frozenset(n for n in self.nodes if n.root not in roots)

    @property
    def replaceable(self) -> tuple[Tensor, ...]:
        """Inputs over which the result may be laid."""
        return tuple(self.tensors[n] for n in self.pattern.in_place if n in self.tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def get(self, name: str) -> Tensor | None:
        """The tensor that the pattern calls `name`, or None where this variant has none."""
        return self.tensors.get(name)

    def __repr__(self) -> str:
        return f"<Group {self.pattern.name}: {' + '.join(n.op for n in self.nodes)}>"


Accepts = Callable[[Group], bool | Refusal]
"""Whether a device takes a group."""


# --- making patterns ---------------------------------------------------------------------------


def pattern(
    name: str,
    *lines: str,
    where: Iterable[Condition] = (),
    outputs: Iterable[str] = (),
    in_place: Iterable[str] = (),
    unread: Iterable[str] = (),
) -> Pattern:
    """Return the pattern of `lines`, with a variant for each choice of its optional ones."""
    named = (tuple(names) for names in (outputs, in_place, unread))
    return Pattern(name, variants(*lines), tuple(where), *named)


def variants(*lines: str) -> tuple[tuple[Step, ...], ...]:
    """All ways to read `lines`, the longest first. Raises GraphError for a line that is none."""
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
        raise GraphError(f"pattern: {line!r} is no line like 'scaled = mul(normed, weight)'")
    name, ops, sources = found.groups()
    named = tuple(s.strip() for s in sources.split(",") if s.strip())
    return Step(name, tuple(ops.split("|")), named)


def _check(name: str, steps: Sequence[Step]) -> None:
    known = {step.name for step in steps}
    read = {s.removeprefix("~") for step in steps for s in step.sources}
    lost = [s.name for s in steps[:-1] if s.name not in read]
    if lost or len(known) < len(steps) or len(steps) < 2:
        raise GraphError(
            f"pattern {name}: {'; '.join(map(str, steps))}: needs two steps or more with names of "
            "their own, all of which lead to the last"
        )


def _form(whole: Pattern, steps: Steps) -> Form:
    last = next(reversed(steps))
    slots = {name: tuple(_slot(source, steps) for source in s.sources) for name, s in steps.items()}
    named = Counter(slot.name for of_step in slots.values() for slot in of_step)
    # A source that the form does not name may be a look at one that it does.
    free = named[""] + sum(_arity(s.ops) - len(s.sources) for s in steps.values())
    inner = [name for name in steps if name != last and name not in whole.outputs]
    needs = Counter(s.ops[0] for s in steps.values() if len(s.ops) == 1 and not _views(s.ops[0]))
    return Form(whole, steps, slots, last, needs, {name: named[name] + free for name in inner})


def _slot(source: str, steps: Steps) -> Slot:
    name = source.removeprefix("~")
    ops = frozenset(steps[name].ops) if name in steps else None
    return Slot("" if name == "_" else name, name != source, ops)


def _arity(ops: Iterable[str]) -> int:
    """The most sources that one of `ops` takes."""
    return max(len(OPS[op].sources) if op in OPS else MANY for op in ops)


def _views(op: str) -> bool:
    return op not in OPS or OPS[op].is_view


def same_shape(*names: str) -> Condition:
    """All of `names` have the same sizes: nothing is repeated."""
    return Condition(
        f"{', '.join(names)} have one shape", names, lambda *ts: len({t.ne for t in ts}) == 1
    )


def single(name: str) -> Condition:
    """`name` is one number."""
    return Condition(f"{name} has one element", (name,), lambda t: t.size == 1)


def param(step: str, name: str, value: object) -> Condition:
    """The parameter `name` of `step` is `value`."""
    return Condition(f"{name} of {step} is {value}", (step,), lambda t: t.params[name] == value)


def leading(part: str, whole: str) -> Condition:
    """`part` is the first elements of each row of `whole`."""
    return Condition(
        f"{part} begins each row of {whole}",
        (part, whole),
        lambda p, w: (p.view_offset, p.nb, p.ne[1:]) == (w.view_offset, w.nb, w.ne[1:]),
    )

"""Fusion: `Pattern`s of nodes that one kernel may compute, and the `Group`s found in a graph.

A pattern reads like its formula, one line for each node:

    pattern("norm_mul", "normed = rms_norm(x)", "scaled = mul(normed, weight)")

Names on the left are the pattern's steps; other names are what the group reads. `add` and `mul`
match either way round. `a|b` are ops of which any will do, `~step` is the value of a step perhaps
reshaped, `_` is anything, `-` says that the source must be absent, and sources not mentioned are
free. A line that starts with `?` is optional: where it is left out, its first source stands for it.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from tensorplug.errors import GraphError, Refusal
from tensorplug.graph import Graph
from tensorplug.ops.table import OPS
from tensorplug.tensor import Tensor

COMMUTATIVE = frozenset({"add", "mul"})
"""Ops whose first two sources may change places."""
FUSION = "TENSORPLUG_FUSION"
"""The environment variable that switches fusion off when it is 0."""

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


@dataclass(frozen=True)
class Pattern:
    """Nodes that a device may compute as one, in one or several variants.

    Each variant ends in its last step, on which all others lead. `outputs` are further steps whose
    values may be read outside: they are always computed. `in_place` are what the group reads at
    no place but the one where it then writes its result, so that this may be laid over it. What
    a device's kernel cannot do is for its `supports_group` to refuse.
    """

    name: str
    variants: tuple[tuple[Step, ...], ...]
    where: tuple[Condition, ...] = ()
    outputs: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for steps in self.variants:
            _check(self.name, steps)

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
) -> Pattern:
    """Return the pattern of `lines`, with a variant for each choice of its optional ones."""
    return Pattern(name, variants(*lines), tuple(where), tuple(outputs), tuple(in_place))


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


def same_shape(*names: str) -> Condition:
    """All of `names` have the same sizes: nothing is repeated."""
    return Condition(
        f"{', '.join(names)} have one shape", names, lambda *ts: len({t.ne for t in ts}) == 1
    )


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


# --- finding groups ----------------------------------------------------------------------------


def find_groups(
    graph: Graph,
    patterns: Iterable[Pattern],
    accepts: Accepts | None = None,
    *,
    nodes: Sequence[Tensor] | None = None,
) -> tuple[Group, ...]:
    """Groups among `nodes`, by default all of `graph`: the longest first, none sharing a node.

    `nodes` are in the order in which they will run; `accepts` says whether a device takes a group.
    Returned in the order of their last nodes.
    """
    order = [n for n in (graph.nodes if nodes is None else nodes) if graph.computes(n)]
    site = _Site(graph, order)
    by_op: dict[str, list[Tensor]] = {}
    for node in order:
        by_op.setdefault(node.op, []).append(node)
    forms = [(p, {s.name: s for s in steps}) for p in patterns for steps in p.variants]
    forms.sort(key=lambda form: len(form[1]), reverse=True)
    taken: set[Tensor] = set()
    found: list[Group] = []
    for shape, steps in forms:
        last = next(reversed(steps.values()))
        for node in (n for op in last.ops for n in by_op.get(op, ())):
            if node in taken:
                continue
            group = _first(shape, steps, node, site, taken)
            if group is not None and (accepts is None or accepts(group)):
                found.append(group)
                taken.update(group.nodes)
    return tuple(sorted(found, key=lambda group: site.place[group.last]))


def _first(
    shape: Pattern, steps: Steps, node: Tensor, site: "_Site", taken: set[Tensor]
) -> Group | None:
    for bound in _match(steps, next(reversed(steps)), node, {}):
        if all(condition.met(bound) for condition in shape.where):
            group = site.group(shape, steps, bound)
            if group is not None and taken.isdisjoint(group.nodes):
                return group
    return None


def _match(steps: Steps, name: str, tensor: Tensor, bound: Bound) -> Iterator[Bound]:
    """All ways in which `tensor` is what the pattern calls `name`, given what is `bound`."""
    if name in bound:
        if bound[name] is tensor:
            yield bound
        return
    if name not in steps:
        yield {**bound, name: tensor}
        return
    if tensor.op not in steps[name].ops:
        return
    wanted = steps[name].sources
    for operands in _orders(tensor):
        yield from _match_sources(steps, wanted, operands, {**bound, name: tensor})


def _orders(tensor: Tensor) -> list[tuple[Tensor | None, ...]]:
    given = tensor.operands
    if tensor.op in COMMUTATIVE and given[0] is not given[1]:
        return [given, (given[1], given[0], *given[2:])]
    return [given]


def _match_sources(
    steps: Steps,
    wanted: Sequence[str],
    operands: Sequence[Tensor | None],
    bound: Bound,
) -> Iterator[Bound]:
    if not wanted:
        yield bound
        return
    given = operands[0] if operands else None
    for more in _match_source(steps, wanted[0], given, bound):
        yield from _match_sources(steps, wanted[1:], operands[1:], more)


def _match_source(steps: Steps, wanted: str, given: Tensor | None, bound: Bound) -> Iterator[Bound]:
    if wanted == "_" or (wanted == "-" and given is None):
        yield bound
    elif given is not None and wanted != "-":
        for tensor in _reshaped(given) if wanted.startswith("~") else (given,):
            yield from _match(steps, wanted.removeprefix("~"), tensor, bound)


def _reshaped(tensor: Tensor) -> Iterator[Tensor]:
    """`tensor`, and what it is a reshaped view of: the same elements in the same order."""
    yield tensor
    while tensor.is_view and tensor.is_contiguous:
        below = tensor.sources[0]
        if not below.is_contiguous or below.size != tensor.size:
            return
        tensor = below
        yield tensor


class _Site:
    """The nodes that will run, where each stands, and who reads what in the whole graph."""

    def __init__(self, graph: Graph, order: Sequence[Tensor]) -> None:
        self.graph = graph
        self.order = order
        self.place = {node: i for i, node in enumerate(order)}
        self.wanted = {*graph.outputs, *graph.effects}

    def group(self, shape: Pattern, steps: Steps, bound: Bound) -> Group | None:
        """The group of a match, or None where it cannot run as one."""
        members = _members([bound[name] for name in steps])
        nodes = [t for t in members if not t.is_view]
        if any(node not in self.place or not node.size for node in nodes):
            return None
        nodes.sort(key=self.place.__getitem__)
        last = bound[next(reversed(steps))]
        outputs = (*(bound[name] for name in shape.outputs if name in steps), last)
        inputs = tuple(dict.fromkeys(s for t in members for s in t.sources if s not in members))
        group = Group(shape, MappingProxyType(dict(bound)), tuple(nodes), outputs, inputs)
        others = [t for name, t in bound.items() if name not in steps]
        closed = self._is_closed(members, outputs) and _is_apart(members, (*inputs, *others))
        if nodes[-1] is last and closed and _writes_only_last(group) and self._can_wait(group):
            return group
        return None

    def _is_closed(self, members: Mapping[Tensor, None], outputs: Sequence[Tensor]) -> bool:
        """Whether nothing outside needs the value of a member that is no output."""
        return all(
            t not in self.wanted and all(r in members for r in self.graph.readers.get(t, ()))
            for t in members
            if t not in outputs
        )

    def _can_wait(self, group: Group) -> bool:
        """Whether nothing between its nodes changes what the group reads, or reads what it makes.

        The nodes run at the place of the last one, so all but that one run later than they would.
        """
        first, end = self.place[group.nodes[0]], self.place[group.last]
        reads = {t.root for t in group.inputs}
        late = {t.root for t in group.outputs if t is not group.last}
        inside = set(group.nodes)
        return not any(
            node not in inside
            and (reads.intersection(node.written_roots) or late & {s.root for s in node.sources})
            for node in self.order[first:end]
        )


def _members(tensors: Sequence[Tensor]) -> dict[Tensor, None]:
    """The nodes of a match and the views between them."""
    members = dict.fromkeys(tensors)
    for node in tensors:
        for source in node.sources:
            between = []
            while source.is_view and source not in members:
                between.append(source)
                source = source.sources[0]
            if source in members:
                members.update(dict.fromkeys(between))
    return members


def _is_apart(members: Mapping[Tensor, None], others: Iterable[Tensor]) -> bool:
    """Whether what the group reads from outside is not made by the group itself."""
    roots = {t.root for t in members if not t.writes}
    return all(t not in members and t.root not in roots for t in others)


def _writes_only_last(group: Group) -> bool:
    """Whether no node but the last writes memory of others, and that none which the group reads.

    An in-place node would lay its result over what other nodes of the group still read.
    """
    for node in group.nodes[:-1]:
        if node.writes or node.root.storage is not None:
            return False
    last = group.last
    if not last.writes:
        return last.storage is None
    written = set(last.written_roots)
    touched = [t for t in group.inputs if t.root in written]
    return OPS[last.op].writes and len(touched) == 1 and not last.also_writes

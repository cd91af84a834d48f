"""`Encoder`: nodes as records of a program, by a table of rules; what no rule takes is NumPy's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tensorplug.device import Bindings, GraphError, Tensor, wrong_id
from tensorplug.ops import OPS
from tensorplug.ops.ids import row_ids
from tensorplug_cpu.operand import Operand
from tensorplug_cpu.plan import Look
from tensorplug_cpu.task import Task, Tools
from tensorplug_native.program import Code, address, pack_node, pack_operand


@dataclass(frozen=True, slots=True)
class Argument:
    """One operand of a record: memory that starts `offset` bytes into `tensor`.

    Without a tensor it is memory of the plan's own. `row` is the number of elements of a row.
    """

    operand: Operand
    row: int
    tensor: Tensor | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """What a rule makes of a node."""

    code: Code
    out: Argument
    sources: tuple[Argument | None, ...]
    floats: tuple[float, ...] = ()
    integers: tuple[int, ...] = ()
    also: Argument | None = None
    """A second result."""

    @property
    def operands(self) -> tuple[Argument | None, ...]:
        """All operands in the order of a NODE; trailing sources may be missing."""
        return (self.out, self.also, *self.sources)


Rule = Callable[[Task], Sequence[Draft]]
"""The records for a node; none where the kernels cannot do it."""

RULES: dict[str, Rule] = {}
"""Rules by op name. Filled by `rule`, when `tensorplug_native.rules` is imported."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for ops."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


@dataclass(frozen=True, slots=True)
class Encoded:
    """One record of a program, and what it was made of."""

    node: Tensor
    draft: Draft
    record: bytes
    """A NODE."""

    def wrong_id(self, value: int, bindings: Bindings) -> GraphError:
        """The error for an id of `value`; it says where that is, if the ids can be read."""
        (held,) = row_ids(self.node)
        return wrong_id((self.node,), bindings) or held.error(value)


def encode(node: Tensor, rules: Mapping[str, Rule], look: Look, tools: Tools) -> Sequence[Encoded]:
    """The records of `node` by its rule; none where NumPy has to compute it. Raises ShapeError.

    `look` has checked that every operand lies within its buffer.
    """
    known = rules.get(node.op)
    if known is None or not _apart(node):
        return []
    operands = tuple(None if t is None else look(t) for t in node.operands)
    task = Task(node, look(node), operands, tools)
    if not task.out.array.flags.writeable or not all(map(_usable, (task.out, *operands))):
        return []
    return [encoded(node, draft) for draft in known(task)]


def encoded(node: Tensor, draft: Draft) -> Encoded:
    """The record of a draft; `node` is whose ids it checks."""
    return Encoded(node, draft, _record(draft))


def _usable(operand: Operand | None) -> bool:
    """Whether there is something, where the processor expects numbers of its size to lie."""
    return operand is None or (operand.array.size > 0 and operand.array.flags.aligned)


def _apart(node: Tensor) -> bool:
    """Whether the memory that `node` writes is that of no source, or exactly that of one."""
    if not node.writes:
        return True
    named = OPS[node.op].alias
    for source in node.sources:
        if source.root is not node.root or (named is not None and source is node.sources[-1]):
            continue
        if not (source.same_layout(node) and source.view_offset == node.view_offset):
            return False
    return True


def _record(draft: Draft) -> bytes:
    operands = [
        pack_operand(None) if given is None else pack_operand(given.operand, given.row)
        for given in draft.operands
    ]
    return pack_node(draft.code, draft.floats, draft.integers, operands)


# --- what rules are written with -----------------------------------------------------------------


def result(task: Task, operand: Operand | None = None) -> Argument:
    """The result of the node, or a look at it that starts where it does."""
    return argument(operand or task.out, task.out, task.node)


def source(task: Task, name: str, operand: Operand | None = None) -> Argument:
    """The source called `name`, or `operand`, which is a part of it."""
    return argument(operand or task[name], task[name], task.source(name))


def optional(task: Task, name: str) -> Argument | None:
    """The source called `name`, or None where it is absent."""
    return None if task.get(name) is None else source(task, name)


def argument(operand: Operand, whole: Operand, tensor: Tensor) -> Argument:
    """`operand`, which is `tensor`, whole, or a part of it."""
    row = operand.array.shape[3]
    if operand.dtype.is_block:
        row = row // operand.dtype.size * operand.dtype.block
    offset = 0 if operand is whole else address(operand.array) - address(whole.array)
    return Argument(operand, row, tensor, offset)

"""Groups of nodes that the kernels compute as one: which they take, and their records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tensorplug.device import Group, Pattern, Refusal, Tensor, Unsupported
from tensorplug.dtypes import F32, I32, I64
from tensorplug.fusion import library
from tensorplug_cpu.plan import Look
from tensorplug_cpu.task import Task, Tools
from tensorplug_native.encode import Argument, Draft, Encoded, argument, encoded
from tensorplug_native.program import Code, Join
from tensorplug_native.rules.common import ACTIVATIONS, PLAIN, READABLE, WRITABLE
from tensorplug_native.rules.rope import turning
from tensorplug_native.rules.rows import NORMS

LONGEST_HEAD = 512
"""Elements of a row that is normalised before it turns."""


@dataclass(frozen=True, slots=True)
class GroupTask:
    """A group, and where its tensors lie; those inside it lie nowhere."""

    group: Group
    look: Look
    tools: Tools

    def argument(self, name: str) -> Argument | None:
        """The tensor called `name`; None where this variant of the pattern has none."""
        tensor = self.group.get(name)
        return None if tensor is None else self.at(tensor)

    def at(self, tensor: Tensor) -> Argument:
        """A tensor that has memory."""
        whole = self.look(tensor)
        return argument(whole, whole, tensor)


@dataclass(frozen=True, slots=True)
class Fusion:
    """How the groups of one pattern are computed."""

    refusal: Callable[[Group], str]
    """Why the kernels do not take a group; empty where they do."""
    drafts: Callable[[GroupTask], Sequence[Draft]]
    ids: str = ""
    """The step whose ids are checked."""


def refusal(group: Group) -> Refusal | None:
    """Why the kernels do not compute `group` as one; None if they do."""
    reason = FUSIONS[group.pattern.name].refusal(group)
    return Refusal(f"{group.pattern.name}: {reason}") if reason else None


def encode_group(group: Group, look: Look, tools: Tools) -> Sequence[Encoded]:
    """The records of a group that `refusal` has nothing against. Raises Unsupported."""
    for output in group.outputs:
        if not look(output).array.flags.writeable:
            raise Unsupported(f"cpu: {output}: writes into read-only memory; copy its root first")
    fusion = FUSIONS[group.pattern.name]
    node = group[fusion.ids] if fusion.ids else group.last
    return [encoded(node, draft) for draft in fusion.drafts(GroupTask(group, look, tools))]


def _plain_rows(*tensors: Tensor | None) -> bool:
    """Whether all that are there are f32 with rows without gaps."""
    return all(t is None or (t.dtype is F32 and (t.ne[0] == 1 or t.nb[0] == 4)) for t in tensors)


# --- norms -------------------------------------------------------------------------------------


def _norm_refusal(group: Group) -> str:
    normed = group["normed"]
    x = group["a" if "sum" in group else "x"]
    read = (x, group.get("b"), group.get("weight"), group.get("bias"))
    if normed.op not in NORMS:
        return f"no kernel for {normed.op} with what follows it"
    if "sum" in group and group["sum"].ne != group["a"].ne:
        return "the first summand must have the shape of the sum"
    if not _plain_rows(*read, *group.outputs):
        return "it takes f32 in rows without gaps"
    if any(t is not None and t.ne[0] != normed.ne[0] for t in read):
        return "rows of all sources must be of one length"
    return ""


def _norm(task: GroupTask) -> Sequence[Draft]:
    group = task.group
    adds = "sum" in group
    normed = group["normed"]
    eps = normed.params["eps"]
    assert isinstance(eps, float)
    x, addend = (task.argument("a"), task.argument("b")) if adds else (task.argument("x"), None)
    sources = (x, task.argument("weight"), task.argument("bias"), addend)
    also = task.argument("sum") if adds else None
    kind = NORMS[normed.op]
    return [Draft(Code.NORM, task.at(group.last), sources, (eps,), (kind,), also)]


# --- turning -----------------------------------------------------------------------------------


def _turn_refusal(group: Group) -> str:
    turned, weight = group["turned"], group.get("weight")
    x = turned.sources[0]
    first = group["x"]
    if turned.params["mode"] not in ("normal", "neox"):
        return f"no kernel for rope of mode {turned.params['mode']}"
    if turned.params["offset"]:
        return "no kernel for rope with an offset"
    if not _plain_rows(first, weight, turned.operands[2]) or turned.dtype is not F32:
        return "it takes f32 in rows without gaps"
    if weight is not None and (weight.ne != (x.ne[0], 1, 1, 1) or x.ne[0] > LONGEST_HEAD):
        return f"it takes one weight for heads of {LONGEST_HEAD} elements at most"
    if weight is not None and first.ne != x.ne:
        return "the norm must be of heads as they turn"
    return _store_refusal(group) if "stored" in group else ""


def _store_refusal(group: Group) -> str:
    turned, ids = group["turned"], group["ids"]
    rows, table = group["stored"].sources[1], group["stored"]
    head, heads, tokens, batch = turned.ne
    if table.dtype not in WRITABLE or (
        not table.dtype.is_block and table.nb[0] != table.dtype.size
    ):
        return f"it writes no rows of {table.dtype.name}"
    if batch != 1 or rows.ne != (head * heads, tokens, 1, 1) or head % table.dtype.block:
        return "the rows of the table must be those of tokens"
    if ids.dtype not in (I32, I64) or ids.ne != (tokens, 1, 1, 1):
        return "it takes an id for each token"
    return "" if head <= LONGEST_HEAD else f"it takes heads of {LONGEST_HEAD} elements at most"


def _turn(task: GroupTask) -> Sequence[Draft]:
    group, turned = task.group, task.group["turned"]
    inner = Task(
        turned,
        task.look(group.last),
        tuple(task.look(t) if t is not None and i else None for i, t in enumerate(turned.operands)),
        task.tools,
    )
    table, drafts = turning(inner)
    norm = group.get("normed")
    eps = 0.0 if norm is None else norm.params["eps"]
    assert isinstance(eps, float)
    sources = (task.argument("x"), table, task.argument("weight"), task.argument("ids"))
    halves = int(turned.params["mode"] == "neox")
    out = task.at(group.last)
    integers = (halves, int(norm is not None))
    return [*drafts, Draft(Code.ROPE, out, sources, (eps,), integers)]


# --- products ----------------------------------------------------------------------------------

_UNIT_PARAMS = {"swiglu_oai": ("alpha", "limit")}


def _product_refusal(group: Group) -> str:
    y = group.last
    names = ("w", "w_gate", "w_up")
    weights = [group[name] for name in names if name in group]
    x, ids = group["x"], group.get("ids")
    slots = 1 if ids is None else ids.ne[0]
    if any(w.dtype not in READABLE or not _dense_weights(w) for w in weights):
        return "it takes weights of types that the kernels read as they are"
    if not _plain_rows(y):
        return "its result is f32"
    if y.ne != (weights[0].ne[1], slots, 1, 1) or x.dtype not in PLAIN or x.ne[2:] != (1, 1):
        return "it takes one row of x"
    if any(w.ne != weights[0].ne or w.ne[3] != 1 for w in weights):
        return "both matrices must have one shape"
    if ids is None and weights[0].ne[2] != 1:
        return "it takes one matrix of weights"
    if ids is not None and (ids.dtype is not I32 or slots % x.ne[1]):
        return "it takes an id for each row of the result"
    biases = [group[name] for name in ("bias", "gate_bias", "up_bias") if name in group]
    count = 1 if ids is None else weights[0].ne[2]
    if any(b.ne != (y.ne[0], count, 1, 1) or not _plain_rows(b) for b in biases):
        return "it takes a bias for each row of weights"
    return ""


def _dense_weights(w: Tensor) -> bool:
    return w.dtype.is_block or w.ne[0] == 1 or w.nb[0] == w.dtype.size


def _product(task: GroupTask) -> Sequence[Draft]:
    group, unit = task.group, task.group.last
    first = group["gate" if "gate" in group else "product"]
    may_round = first.params.get("precision", "default") == "default"
    rounds = int(may_round and task.tools.shared.get(ACTIVATIONS) == "int8")
    paired = "gate" in group
    sources = (
        task.argument("w_gate" if paired else "w"),
        task.argument("x"),
        task.argument("ids"),
        task.argument("gate_bias" if paired else "bias"),
        task.argument("w_up"),
        task.argument("up_bias"),
    )
    floats = tuple(unit.params[name] for name in _UNIT_PARAMS.get(unit.op, ()))
    integers = (rounds, Join[unit.op.upper()]) if paired else (rounds,)
    out = task.at(group.last)
    return [Draft(Code.MATVEC, out, sources, _numbers(floats), integers)]


def _numbers(values: Sequence[object]) -> tuple[float, ...]:
    return tuple(float(v) for v in values if isinstance(v, int | float))


# --- the table ---------------------------------------------------------------------------------

_NORM = Fusion(_norm_refusal, _norm)
_STORE = Fusion(_turn_refusal, _turn, "stored")

FUSIONS: Mapping[str, Fusion] = {
    library.NORM_MUL.name: _NORM,
    library.ADD_NORM.name: _NORM,
    library.RMS_NORM_ROPE.name: Fusion(_turn_refusal, _turn),
    library.RMS_NORM_ROPE_SET_ROWS.name: _STORE,
    library.ROPE_SET_ROWS.name: _STORE,
    library.MUL_MAT_ADD.name: Fusion(_product_refusal, _product),
    library.MUL_MAT_GLU.name: Fusion(_product_refusal, _product),
    library.MUL_MAT_ID_ADD.name: Fusion(_product_refusal, _product, "product"),
    library.MUL_MAT_ID_GLU.name: Fusion(_product_refusal, _product, "gate"),
}
"""By the name of the pattern."""

PATTERNS: tuple[Pattern, ...] = library.named(FUSIONS)
"""What devices offer."""

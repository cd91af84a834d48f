"""Compiles nodes into a `MetaProgram` for several devices, choosing what moves the fewest bytes."""

from collections import Counter
from collections.abc import Callable, Sequence

from tensorplug.device.device import Device
from tensorplug.errors import ShapeError, TensorplugError
from tensorplug.graph.tensor import Tensor
from tensorplug.meta.choose import Cost, Sharding, Use, choices
from tensorplug.meta.convert import Converter
from tensorplug.meta.local import (
    aliased,
    like,
    local_ne,
    part_of,
    slice_of,
    written_operands,
)
from tensorplug.meta.program import Held, MetaProgram, Row, received
from tensorplug.meta.state import SUMMANDS, WHOLE, Partition

Homes = Callable[[Tensor], Partition | None]
"""Returns the state of a root that has memory; None for a root that has no memory yet."""


def build(
    nodes: Sequence[Tensor],
    devices: Sequence[Device],
    homes: Homes,
    has_own: Callable[[Tensor], bool] = lambda _: False,
) -> MetaProgram:
    """Plan `nodes`, in their order, over `devices`.

    The caller gives memory to tensors without a home. `has_own` is true for views that have memory
    of their own, as copies of other devices' tensors have. Raises ShapeError for a view that cannot
    be formed on the devices.
    """
    return _Builder(nodes, devices, homes, has_own).build()


class _Builder:
    def __init__(
        self,
        nodes: Sequence[Tensor],
        devices: Sequence[Device],
        homes: Homes,
        has_own: Callable[[Tensor], bool],
    ) -> None:
        self._nodes = nodes
        self._uses = Counter(source for node in nodes for source in node.sources)
        self._devices = devices
        self._homes = homes
        self._has_own = has_own
        self._written = {root for node in nodes for root in node.written_roots}
        self._convert = Converter(devices, self._root, self._view, self._rooted)
        self._program = self._convert.program

    def build(self) -> MetaProgram:
        for node in self._nodes:
            if not node.is_view and node.size:
                self._compute(node)
        self._convert.flush()
        return self._program

    # --- what the devices have ---------------------------------------------------------------

    def _root(self, tensor: Tensor) -> Held:
        """What each device has of a root that the program does not compute: leafs, empty nodes."""
        state = self._homes(tensor)
        if state is None:
            return self._convert.at_home(tensor, WHOLE, None)
        return self._convert.at_home(tensor, state, tensor)

    def _view(self, view: Tensor) -> Held:
        """What each device has of a view, or of a write that the program does not compute."""
        if self._has_own(view):
            return self._convert.at_home(view, WHOLE, view)
        if view.writes:
            return self._convert.held(aliased(view))
        held = [self._convert.held(s) for s in view.sources]
        states = [h.state for h in held]
        for choice in choices(Use(view, states, len(self._devices))):
            if choice.way is not None and list(choice.wanted) != states:
                continue
            have = held if choice.way else [self._rooted(s) for s in view.sources]
            try:
                return self._parts(view, choice, have)
            except TensorplugError:
                if choice.way is None:
                    raise
        raise ShapeError(f"{view}: has no form on {len(self._devices)} devices")

    def _rooted(self, tensor: Tensor) -> Held:
        """All of `tensor` on every device, with the strides that it has in its root."""
        if self._convert.held(tensor).state == WHOLE:
            return self._convert.held(tensor)
        if tensor.root is tensor:
            return self._convert.get(tensor, WHOLE)
        if tensor.writes:
            return self._rooted(aliased(tensor))
        whole = Sharding(None, (WHOLE,), WHOLE, (), Cost(), "")
        return self._parts(tensor, whole, [self._rooted(s) for s in tensor.sources])

    def _parts(self, node: Tensor, choice: Sharding, have: Sequence[Held | None]) -> Held:
        found = []
        for d in range(len(self._devices)):
            sources = [None if h is None else h.locals[d] for h in have]
            ne = local_ne(node, choice.result, d)
            if 0 in ne and node.size:
                found.append(self._convert.nothing(like(node, ne), d))
                continue
            made = part_of(node, choice, sources, d)
            if made.ne != ne:
                raise ShapeError(f"{node}: a part has sizes {made.ne}, not {ne}")
            found.append(made)
        if choice.result != SUMMANDS:
            return Held(choice.result, tuple(found))
        return Held(SUMMANDS, tuple(found), next(h.holders for h in have if h and h.holders))

    # --- computing -----------------------------------------------------------------------------

    def _compute(self, node: Tensor) -> None:
        fixed = written_operands(node)
        for i in fixed:
            self._sum_up(node.operands[i])
        states = [None if t is None else self._convert.held(t).state for t in node.operands]
        home = self._homes(node) if node.root is node else None
        use = Use(
            node,
            states,
            len(self._devices),
            fixed=fixed,
            exported=home is not None and not node.writes,
            lonely=lambda t: self._uses[t] <= 1,
        )
        before, refused = len(self._program.steps), ""
        for choice in choices(use):
            if choice.way is not None:
                problem, contiguous = self._probe(node, choice)
                if problem:
                    refused = refused or f"not in parts: {problem}"
                    continue
                result = self._in_parts(node, choice, contiguous=contiguous)
            elif any(self._is_cut_below(node.operands[i]) for i in fixed):
                result = self._write_whole(node, fixed)
            else:
                result = self._in_parts(node, choice, contiguous=False)
            break
        self._settle(node, result, home)
        moved = sum(received(s) for s in self._program.steps[before:])
        shape = f"{node.dtype.name}{list(node.shape)}"
        why = refused if refused and choice.way is None else choice.why
        self._program.rows[node] = Row(node.label, node.op, shape, str(result.state), why, moved)

    def _is_cut_below(self, target: Tensor | None) -> bool:
        """True if the root of `target` is cut, whatever the state of `target` is."""
        return target is not None and self._convert.held(target.root).state != WHOLE

    def _sum_up(self, target: Tensor | None) -> None:
        """Sum `target` over the devices before it is written, if it is held as summands.

        A device without a summand has zeros in its place, which must not be written.
        """
        if target is not None and self._convert.held(target).state == SUMMANDS:
            self._convert.get(target, WHOLE)

    def _probe(self, node: Tensor, choice: Sharding) -> tuple[str, bool]:
        """Return why a device refuses its part, empty if none does, and whether slices must be
        contiguous for the devices to accept their parts.
        """
        problem = ""
        for contiguous in (False, True):
            problem = self._problem(node, choice, contiguous=contiguous)
            if not problem:
                return "", contiguous
        return problem, True

    def _problem(self, node: Tensor, choice: Sharding, *, contiguous: bool) -> str:
        for d, device in enumerate(self._devices):
            sources = [
                None if t is None or w is None else self._stand_in(t, w, d, contiguous=contiguous)
                for t, w in zip(node.operands, choice.wanted, strict=True)
            ]
            if any(s is not None and not s.size for s in sources):
                continue
            try:
                made = part_of(node, choice, sources, d)
            except TensorplugError as error:
                return str(error)
            if made.ne != local_ne(node, choice.result, d):
                return f"a part has sizes {made.ne}"
            refusal = device.refuses(made)
            if refusal is not None:
                return refusal.reason
        return ""

    def _stand_in(
        self, tensor: Tensor, want: Partition, device: int, *, contiguous: bool
    ) -> Tensor:
        """A tensor with the shape and strides that an operand will have on a device."""
        held = self._convert.held(tensor)
        if held.state == want:
            return held.locals[device]
        if held.state == WHOLE and want.is_cut and not contiguous:
            local = slice_of(held.locals[device], want, device)
            if local is not None:
                return local
        return like(tensor, local_ne(tensor, want, device))

    def _in_parts(self, node: Tensor, choice: Sharding, *, contiguous: bool) -> Held:
        have = [
            None if t is None or s is None else self._convert.get(t, s, contiguous=contiguous)
            for t, s in zip(node.operands, choice.wanted, strict=True)
        ]
        return self._emit(node, choice, have)

    def _emit(self, node: Tensor, choice: Sharding, have: Sequence[Held | None]) -> Held:
        made, holders = [], set()
        for d in range(len(self._devices)):
            ne = local_ne(node, choice.result, d)
            if not _has_part(choice, have, ne, d):
                made.append(self._convert.nothing(like(node, ne), d))
                continue
            sources = [None if h is None else self._convert.summand(h, d) for h in have]
            made.append(part_of(node, choice, sources, d))
            holders.add(d)
            self._convert.compute(made[-1], d)
        if choice.result != SUMMANDS:
            return Held(choice.result, tuple(made))
        # A device without a summand gets memory in which it receives the sum.
        fresh = [t if d in holders else like(node, node.ne) for d, t in enumerate(made)]
        return Held(SUMMANDS, tuple(fresh), frozenset(holders))

    def _write_whole(self, node: Tensor, fixed: Sequence[int]) -> Held:
        """Write into a cut tensor: gather it, write it whole on every device, and cut it again."""
        targets = [t for i in fixed if (t := node.operands[i]) is not None]
        before = {t.root: self._convert.held(t.root) for t in targets}
        for root in before:
            self._convert.rest(root, self._convert.get(root, WHOLE))
        whole = [None if t is None else WHOLE for t in node.operands]
        result = self._in_parts(
            node, Sharding(None, whole, WHOLE, (), Cost(), ""), contiguous=False
        )
        for root, held in before.items():
            if self._homes(root) is not None and held.state != WHOLE:
                self._convert.redeal(root, self._convert.held(root), held)
                self._convert.rest(root, held)
        return result

    def _settle(self, node: Tensor, result: Held, home: Partition | None) -> None:
        """Record the result, deliver it to its home, and forget copies of what `node` wrote."""
        if node.writes:
            for root in node.written_roots:
                self._convert.forget(root)
            return
        self._convert.rest(node, result)
        if home is not None:
            kept = node in self._written
            self._convert.deliver(node, home, only=kept)


def _has_part(
    choice: Sharding, have: Sequence[Held | None], ne: Sequence[int], device: int
) -> bool:
    """True if a device has something to compute.

    Its slices must not be empty; for a result in the state SUMMANDS it must have a summand.
    """
    if 0 in ne:
        return False
    if choice.result != SUMMANDS:
        return True
    present = [h for h in have if h is not None]
    sums = [h for h in present if h.state == SUMMANDS]
    if sums and all(device not in h.holders for h in sums):
        return False
    return all(h.locals[device].size for h in present)

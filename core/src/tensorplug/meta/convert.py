"""`Converter`: tracks the state of each tensor on the devices, and adds conversion steps."""

from collections.abc import Callable, Sequence

from tensorplug.device.device import Device
from tensorplug.graph.tensor import Tensor
from tensorplug.meta.local import as_is, like, local_ne, slice_of
from tensorplug.meta.program import (
    AllReduce,
    Exchange,
    Held,
    Home,
    MetaProgram,
    Move,
    Redeal,
    Segment,
)
from tensorplug.meta.state import SUMMANDS, WHOLE, Partition
from tensorplug.ops.copy import cont, in_place
from tensorplug.ops.elementwise import add

Lookup = Callable[[Tensor], Held]


class Converter:
    """What each device has of each tensor, while a program is built.

    Knowledge about views and copies of a root is dropped when the root is written.
    """

    def __init__(
        self, devices: Sequence[Device], root: Lookup, view: Lookup, rooted: Lookup
    ) -> None:
        self.program = MetaProgram(len(devices), homes=[{} for _ in devices])
        self._devices = devices
        self._find_root = root
        self._find_view = view
        self._find_rooted = rooted
        self._known: dict[Tensor, dict[tuple[Tensor, Partition | None, bool], Held]] = {}
        self._pending: list[list[Tensor]] = [[] for _ in devices]

    # --- what is known -----------------------------------------------------------------------

    def held(self, tensor: Tensor) -> Held:
        """What the devices have of `tensor` in its present state, without conversion."""
        known = self._known.setdefault(tensor.root, {})
        key = (tensor, None, False)
        if key not in known:
            find = self._find_root if tensor.root is tensor else self._find_view
            # The call may replace the dictionary of the root, so `known` may be stale after it.
            found = find(tensor)
            self._known[tensor.root][key] = found
        return self._known[tensor.root][key]

    def rest(self, root: Tensor, held: Held) -> None:
        """Record that the devices have `held` of `root`; drop views and copies."""
        self._known[root] = {(root, None, False): held}

    def forget(self, root: Tensor) -> None:
        """Drop views and copies of `root`, which was overwritten."""
        self.rest(root, self.held(root))

    def at_home(self, tensor: Tensor, state: Partition, of: Tensor | None) -> Held:
        """Leafs that lie in the memory of `of`, one for each device; all zero if `of` is None."""
        leafs = tuple(
            as_is(tensor) if state == WHOLE else like(tensor, local_ne(tensor, state, d))
            for d in range(len(self._devices))
        )
        for d, leaf in enumerate(leafs):
            self.program.homes[d][leaf] = Home(of)
        return Held(state, leafs)

    def nothing(self, leaf: Tensor, device: int) -> Tensor:
        """Give `leaf`, which is all zero or empty, a place in the device's memory of zeros."""
        self.program.homes[device][leaf] = Home(None)
        return leaf

    def summand(self, held: Held, device: int) -> Tensor:
        """The tensor of `device` in `held`; zeros for a device without a summand."""
        local = held.locals[device]
        if held.state != SUMMANDS or device in held.holders:
            return local
        return self.nothing(like(local, local.ne), device)

    # --- steps -------------------------------------------------------------------------------

    def compute(self, node: Tensor, device: int) -> None:
        """Add `node` to the device's part of the current segment."""
        self._pending[device].append(node)

    def flush(self) -> None:
        """End the current segment and add it to the program."""
        if any(self._pending):
            self.program.steps.append(Segment(tuple(map(tuple, self._pending))))
        self._pending = [[] for _ in self._devices]

    def redeal(self, tensor: Tensor, source: Held, target: Held) -> None:
        """Add a copy of `tensor` from one state to another, through the host."""
        self.flush()
        self.program.steps.append(Redeal(0, None, tensor, source, target))

    # --- other states ------------------------------------------------------------------------

    def get(self, tensor: Tensor, wanted: Partition, *, contiguous: bool = False) -> Held:
        """Return `tensor` in the state `wanted`, adding the steps of the conversion.

        Slices of a mirrored tensor are strided views, unless `contiguous` is set.
        """
        held = self.held(tensor)
        if held.state == wanted:
            return held
        key = (tensor, wanted, contiguous)
        known = self._known[tensor.root]
        if key not in known:
            found = self._converted(tensor, held, wanted, contiguous=contiguous)
            if found.state == self.held(tensor).state == wanted:
                return found
            self._known[tensor.root][key] = found
            return found
        return known[key]

    def _converted(
        self, tensor: Tensor, held: Held, wanted: Partition, *, contiguous: bool
    ) -> Held:
        if held.state == SUMMANDS:
            self._reduce(tensor.root)
            return self.get(tensor, wanted, contiguous=contiguous)
        if wanted == WHOLE and tensor.splits_blocks:
            return self._find_rooted(tensor)
        if wanted == WHOLE:
            return self._gathered(tensor, held)
        if held.state != WHOLE:
            held = self.get(tensor, WHOLE)
        if wanted == SUMMANDS:
            return Held(SUMMANDS, held.locals, frozenset({0}))
        return self._sliced(tensor, held, wanted, contiguous=contiguous)

    def _sliced(self, tensor: Tensor, held: Held, wanted: Partition, *, contiguous: bool) -> Held:
        slices = [slice_of(local, wanted, d) for d, local in enumerate(held.locals)]
        if any(s is None for s in slices):
            return self._fresh(tensor, held, wanted)
        found = []
        for d, view in enumerate(slices):
            assert view is not None
            if not view.size:
                found.append(self.nothing(view, d) if view.is_leaf else view)
            elif view.is_contiguous or not contiguous:
                found.append(view)
            elif self._devices[d].refuses(cont(view)):
                return self._fresh(tensor, held, wanted)
            else:
                found.append(cont(view))
                self.compute(found[-1], d)
        return Held(wanted, tuple(found))

    def _fresh(self, tensor: Tensor, held: Held, wanted: Partition) -> Held:
        """Convert `tensor` to another state in new memory, through the host."""
        made = Held(
            wanted,
            tuple(like(tensor, local_ne(tensor, wanted, d)) for d in range(len(self._devices))),
        )
        self._home_empty(made)
        self.redeal(tensor, held, made)
        return made

    def _home_empty(self, held: Held) -> None:
        for d, local in enumerate(held.locals):
            if not local.size:
                self.nothing(local, d)

    def _gathered(self, tensor: Tensor, held: Held, target: Held | None = None) -> Held:
        """All-gather: copy all slices of a cut tensor to every device."""
        made = target or Held(WHOLE, tuple(like(tensor, tensor.ne) for _ in self._devices))
        if not _in_one_piece(tensor, held):
            self.redeal(tensor, held, made)
            return made
        axis = held.state.axis
        assert isinstance(axis, int)
        per = tensor.dtype.block if axis == 0 else 1
        unit = made.locals[0].nb[axis]
        moves = []
        for source, local in enumerate(held.locals):
            begin = 0
            for start, size in held.state.pieces(source):
                moves += [
                    Move(
                        to, None, source, local, end, size // per * unit, begin, start // per * unit
                    )
                    for to, end in enumerate(made.locals)
                ]
                begin += size // per * unit
        self.flush()
        self.program.steps.append(Exchange(tuple(moves)))
        return made

    def deliver(self, node: Tensor, home: Partition, *, only: bool) -> None:
        """Bring a result to its home in state `home`; with `only`, drop its other copies."""
        held = self.held(node)
        if held.state == SUMMANDS and home == WHOLE:
            self._settle(node, held)
            held = self._reduce(node)
        if held.state == home:
            self._settle(node, held)
            return
        target = self.at_home(node, home, node)
        if home == WHOLE:
            self._gathered(node, held, target)
        else:
            self.redeal(node, self.get(node, WHOLE), target)
        if only:
            self.rest(node, target)
        elif home == WHOLE:
            self._known[node][node, WHOLE, False] = target

    def _settle(self, node: Tensor, held: Held) -> None:
        """Let the devices compute `node` directly in its home."""
        for d, local in enumerate(held.locals):
            self.program.homes[d].setdefault(local, Home(node))

    # --- sums ----------------------------------------------------------------------------------

    def _reduce(self, root: Tensor) -> Held:
        """All-reduce: replace the summands of `root` by their sum, in place."""
        held = self.held(root)
        self.flush()
        steps = _butterfly(held)
        everyone = len(held.holders) == len(self._devices)
        self.program.steps.append(AllReduce(root, held.locals, everyone, tuple(steps)))
        self.rest(root, Held(WHOLE, held.locals))
        return self.held(root)


def _butterfly(held: Held) -> list[Segment | Exchange]:
    """The steps of a butterfly all-reduce over the holders.

    Holders beyond the largest power of two first add their summand to a partner; in the end, every
    device that took no part in the butterfly receives the sum.
    """
    places = sorted(held.holders)
    count, most = len(held.locals), 1 << (len(places).bit_length() - 1)
    size = held.locals[0].nbytes
    steps: list[Segment | Exchange] = []

    def add_from(pairs: Sequence[tuple[int, int]]) -> None:
        """Each pair is (device that sends its summand, device that adds it to its own)."""
        moves, sums = [], [() for _ in range(count)]  # type: list[Move], list[tuple[Tensor, ...]]
        for giver, adder in pairs:
            mine = held.locals[adder]
            received = like(mine, mine.ne)
            moves.append(Move(adder, None, giver, held.locals[giver], received, size))
            sums[adder] = (in_place(add(mine, received)),)
        if moves:
            steps.extend((Exchange(tuple(moves)), Segment(tuple(sums))))

    add_from([(places[i], places[i - most]) for i in range(most, len(places))])
    offset = most // 2
    while offset:
        add_from([(places[i ^ offset], places[i]) for i in range(most)])
        offset //= 2
    rest = [d for d in range(count) if d not in places[:most]]
    if rest:
        # Devices outside the butterfly get the sum from devices in it, in turns.
        steps.append(
            Exchange(
                tuple(
                    Move(
                        d,
                        None,
                        places[i % most],
                        held.locals[places[i % most]],
                        held.locals[d],
                        size,
                    )
                    for i, d in enumerate(rest)
                )
            )
        )
    return steps


def _in_one_piece(tensor: Tensor, held: Held) -> bool:
    """True if each slice is contiguous and is a contiguous range of bytes of the whole."""
    axis = held.state.axis
    assert isinstance(axis, int)
    return all(n == 1 for n in tensor.ne[axis + 1 :]) and all(
        local.is_contiguous for local in held.locals
    )

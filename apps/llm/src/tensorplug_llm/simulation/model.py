"""`simulate`: how fast programs of a schedule run on devices and links that need not exist.

A pure function. What it counts:

* A device computes one split at a time. A split takes `overhead` and, for each node, the longer of
  its arithmetic at `flops` and its bytes at `bandwidth`.
* A link carries the bytes of one copy at a time; a copy arrives `latency` later.
* The driver, which asks the devices for each split, takes `call` for each request, one at a time;
  a request arrives `latency` of the link later.
* A text asks for its next token when it has read the one before. Devices, links and the driver
  serve all texts in the order in which work becomes ready.

What it does not count: queues of the system, losses of a link, and memory that is moved between
devices other than by the program.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf, prod

from tensorplug.device import Tensor
from tensorplug.errors import OptionError
from tensorplug.planning.program import Copy, Program, Read, Run, Step

ROUNDS = 4
"""Tokens of each text. The rate is that of the second and third: the pipeline is full then."""
MOST_WORK = 1 << 21
"""The most pieces of work, counting a token of each text, that are simulated."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of a device: operations and bytes per second, and seconds that each split costs."""

    flops: float
    bandwidth: float
    overhead: float = 0.0


@dataclass(frozen=True, slots=True)
class Link:
    """A way between two devices: seconds that a byte is under way, and bytes per second."""

    latency: float = 0.0
    bandwidth: float = inf


@dataclass(frozen=True, slots=True)
class Machines:
    """What a program runs on: speeds of the streams by number, links, and seconds of a call."""

    speeds: Sequence[Speed]
    link: Callable[[int, int], Link]
    call: float = 0.0


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a number of equal texts, generated at the same time, would get.

    `busy` has for each stream the share of the time in which it computes; the rest is bubbles.
    """

    texts: int
    tokens_per_second: float
    token_seconds: float
    """Seconds from one token of a text to its next."""
    busy: tuple[float, ...]
    link: float
    """Share of the time in which the busiest link carries bytes."""
    driver: float
    """Share of the time in which the driver sends requests."""

    @property
    def per_text(self) -> float:
        """Tokens per second of one text."""
        return self.tokens_per_second / self.texts


Server = int | tuple[int, int] | str
"""What serves one piece of work at a time: a stream, a link or the driver."""
DRIVER = "driver"


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of work: `busy` seconds of `server`, `later` seconds until others see its result."""

    server: Server
    busy: float
    later: float
    after: tuple[int, ...]
    """Numbers of the pieces that must be done before."""


def tasks(program: Program, machines: Machines, tokens: int = 1) -> tuple[Task, ...]:
    """The pieces of work of one run that reads `tokens` tokens of a text."""
    found: list[Task] = []
    made: dict[Tensor, int] = {}
    for step in program:
        after = tuple(sorted({made[t.root] for t in step.reads if t.root in made}))
        task = _task(step, machines, tokens, after)
        if task is None:
            continue
        if isinstance(step, Run):
            way = machines.link(len(machines.speeds) - 1, step.stream)
            if machines.call or way.latency:
                found.append(Task(DRIVER, machines.call, way.latency, ()))
                task = Task(task.server, task.busy, task.later, (*task.after, len(found) - 1))
        for tensor in step.writes:
            made[tensor.root] = len(found)
        found.append(task)
    return tuple(found)


def _task(step: Step, machines: Machines, tokens: int, after: tuple[int, ...]) -> Task | None:
    if isinstance(step, Run):
        return Task(step.stream, run_seconds(step, machines.speeds[step.stream], tokens), 0, after)
    if isinstance(step, Copy):
        return _carried(step.sender, step.stream, step.source.nbytes * tokens, machines, after)
    if isinstance(step, Read):  # only the last token's value is read
        host = len(machines.speeds) - 1
        return _carried(step.stream, host, step.tensor.nbytes, machines, after)
    return None


def _carried(
    sender: int, receiver: int, size: int, machines: Machines, after: tuple[int, ...]
) -> Task:
    link = machines.link(sender, receiver)
    return Task((sender, receiver), size / link.bandwidth, link.latency, after)


def run_seconds(run: Run, speed: Speed, tokens: int = 1) -> float:
    """Seconds that a device computes a split."""
    nodes = [node for node in run.nodes if not node.is_view]
    return speed.overhead + sum(_node_seconds(node, speed, tokens) for node in nodes)


def _node_seconds(node: Tensor, speed: Speed, tokens: int) -> float:
    return max(tokens * arithmetic(node) / speed.flops, traffic(node, tokens) / speed.bandwidth)


def arithmetic(node: Tensor) -> int:
    """Operations of a node for one token: two for each product, else one for each element."""
    if node.writes:
        return 0
    if node.op in ("mul_mat", "mul_mat_id", "out_prod"):
        return 2 * prod(node.ne) * node.sources[0].ne[0]
    if node.op == "flash_attn_ext":
        return 4 * prod(node.ne) * node.sources[1].ne[1]
    return prod(node.ne)


def traffic(node: Tensor, tokens: int) -> int:
    """Bytes that a node moves: persistent tensors once, all others for each token."""
    if node.writes or node.op == "get_rows":
        rows = sum(s.nbytes for s in node.sources if s.root.place is None)
        return 2 * tokens * (rows if node.writes else node.nbytes)
    size = tokens * node.nbytes
    for source in dict.fromkeys(node.sources):
        if source.root.place is None:
            size += tokens * source.nbytes
        else:
            size += int(source.nbytes * _used(node, source))
    return size


def _used(node: Tensor, source: Tensor) -> float:
    """The part of a persistent tensor that a node reads: of a mixture, the experts it uses."""
    if node.op == "mul_mat_id" and source is node.sources[0]:
        return min(1.0, prod(node.sources[2].ne) / source.ne[2])
    return 1.0


def simulate(program: Program, machines: Machines, texts: int = 1) -> Simulated:
    """How fast `texts` texts are generated together, a run of `program` for each token of each.

    Raises OptionError for more work than a minute's.
    """
    pieces = tasks(program, machines)
    if len(pieces) * texts > MOST_WORK:
        raise OptionError(
            f"simulate: {texts} texts with {len(pieces)} pieces of work for each token, more than "
            f"{MOST_WORK:,} in all; simulate fewer texts"
        )
    ends = sorted(_served([pieces] * texts, ROUNDS))
    seconds = ends[3 * texts - 1] - ends[texts - 1]
    rate = 2 * texts / seconds if seconds else inf
    shares = {server: min(1.0, rate * busy) for server, busy in _busy(pieces).items() if busy}
    links = (share for server, share in shares.items() if isinstance(server, tuple))
    return Simulated(
        texts,
        rate,
        texts / rate,
        tuple(shares.get(stream, 0.0) for stream in range(len(machines.speeds))),
        max(links, default=0.0),
        shares.get(DRIVER, 0.0),
    )


def first_token(program: Program, machines: Machines, prompt: int, chunk: int) -> float:
    """Seconds until a prompt of `prompt` tokens is read, `chunk` at a time, and a token is there.

    Chunks follow each other through the devices. Each costs as much arithmetic as its tokens one by
    one and reads the weights once.
    """
    sizes = [min(chunk, prompt - start) for start in range(0, prompt, chunk)]
    last = tasks(program, machines, sizes[-1])
    before = tuple(step for step in program if not isinstance(step, Read))
    return max(_served([*(tasks(before, machines, n) for n in sizes[:-1]), last], 1))


def moved(program: Program) -> int:
    """Bytes that one token moves between streams, and to the driver."""
    found = (step.moved for step in program if isinstance(step, Copy | Read))
    return sum(tensor.nbytes for tensor in found if tensor is not None)


def _busy(pieces: Sequence[Task]) -> Mapping[Server, float]:
    found: dict[Server, float] = {}
    for task in pieces:
        found[task.server] = found.get(task.server, 0.0) + task.busy
    return found


class _Text:
    """The work of one text: what is still to be done in its present round."""

    def __init__(self, pieces: Sequence[Task], followers: Sequence[Sequence[int]]) -> None:
        self.pieces = pieces
        self.rounds = 0
        self._followers = followers

    def begin(self, now: float) -> list[tuple[float, int]]:
        """Start a round; returns the work that is ready, each with its time."""
        self._waiting = [len(task.after) for task in self.pieces]
        self._ready = [now] * len(self.pieces)
        self._left = len(self.pieces)
        self.end = now
        return [(now, i) for i, task in enumerate(self.pieces) if not task.after]

    def finish(self, piece: int, now: float) -> list[tuple[float, int]]:
        """Note that others see the result of a piece; returns the work that is ready by that."""
        self.end = max(self.end, now)
        self._left -= 1
        found = []
        for i in self._followers[piece]:
            self._ready[i] = max(self._ready[i], now)
            self._waiting[i] -= 1
            if not self._waiting[i]:
                found.append((self._ready[i], i))
        if not self._left:
            self.rounds += 1
        return found

    @property
    def is_done(self) -> bool:
        """Whether all work of the round is done."""
        return not self._left


def _served(programs: Sequence[Sequence[Task]], rounds: int) -> list[float]:
    """The seconds at which the texts have done each of their rounds."""
    unlike = {id(pieces): pieces for pieces in programs}
    followers = {key: _followers(pieces) for key, pieces in unlike.items()}
    texts = [_Text(pieces, followers[id(pieces)]) for pieces in programs]
    order = count()
    queue = [(now, next(order), t, i) for t in texts for now, i in t.begin(0.0)]
    free: dict[Server, float] = {}
    ends: list[float] = []
    while queue:
        now, _, text, piece = heapq.heappop(queue)
        task = text.pieces[piece]
        end = max(now, free.get(task.server, 0.0)) + task.busy
        free[task.server] = end
        ready = text.finish(piece, end + task.later)
        if text.is_done:
            ends.append(text.end)
            ready = text.begin(text.end) if text.rounds < rounds else []
        for moment, i in ready:
            heapq.heappush(queue, (moment, next(order), text, i))
    return ends


def _followers(pieces: Sequence[Task]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in pieces]
    for i, task in enumerate(pieces):
        for before in task.after:
            found[before].append(i)
    return found

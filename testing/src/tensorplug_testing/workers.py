"""Distributes cases over worker processes: the death of a worker fails only its present case."""

import contextlib
import faulthandler
import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess

import tensorplug
from tensorplug.errors import DeviceError, TensorplugError
from tensorplug.text import ending
from tensorplug_testing.cases import Case
from tensorplug_testing.check import Outcome, check
from tensorplug_testing.tiers import all_cases

CHUNK = 50
"""The number of cases that a worker gets at a time."""
CLOSING = 60.0
"""Time limit in seconds for a worker to exit after its last case."""
READY = "ready"


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    pipe: Connection
    ready: bool = False
    doing: deque[int] = field(default_factory=deque)
    """The cases that the worker has not answered yet; it is computing the first of them."""


def share_out(
    spec: str, cases: Sequence[Case], *, seed: int, jobs: int
) -> Iterator[tuple[int, Outcome]]:
    """Check `cases` in `jobs` processes; yields (index of case, outcome) as they complete.

    If a process dies, its present case has failed, and a new process continues with the next case.
    Raises DeviceError if a process cannot open the device.
    """
    yield from _Shares(spec, cases, seed, jobs).outcomes()


class _Shares:
    """The cases that each worker process runs, and the cases that are not assigned yet."""

    def __init__(self, spec: str, cases: Sequence[Case], seed: int, jobs: int) -> None:
        self._spec, self._cases, self._seed = spec, cases, seed
        places = range(len(cases))
        self._waiting = deque(deque(places[i : i + CHUNK]) for i in places[::CHUNK])
        self._workers = [self._start() for _ in range(min(jobs, len(self._waiting)))]

    def outcomes(self) -> Iterator[tuple[int, Outcome]]:
        try:
            while self._workers:
                pipes = wait([worker.pipe for worker in self._workers])
                for worker in [w for w in self._workers if w.pipe in pipes]:
                    try:
                        answer = worker.pipe.recv()
                    except (EOFError, OSError):
                        yield from self._ended(worker)
                    else:
                        yield from self._answered(worker, answer)
        finally:
            for worker in self._workers:
                worker.process.kill()
                worker.process.join()

    def _start(self) -> _Worker:
        # "spawn", because drivers do not survive a fork: each process opens the device itself.
        context: SpawnContext = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self._spec, self._seed))
        process.start()
        theirs.close()  # so that `ours` reports the end of the process
        return _Worker(process, ours)

    def _answered(self, worker: _Worker, answer: Outcome | str) -> Iterator[tuple[int, Outcome]]:
        if isinstance(answer, Outcome):
            yield worker.doing.popleft(), answer
        elif answer != READY:
            raise DeviceError(f"{self._spec}: a process of several cannot open it: {answer}")
        worker.ready = True
        if not worker.doing:
            worker.doing = self._waiting.popleft() if self._waiting else deque()
            with contextlib.suppress(OSError):  # the worker has died: its pipe will report EOF
                worker.pipe.send([self._cases[place].id for place in worker.doing])

    def _ended(self, worker: _Worker) -> Iterator[tuple[int, Outcome]]:
        worker.process.join(CLOSING)
        worker.process.kill()
        worker.process.join()
        self._workers.remove(worker)
        how = ending(worker.process.exitcode or 0)
        if not worker.ready:
            raise DeviceError(
                f"{self._spec}: a process ended with {how} while it opened the device"
            )
        if worker.doing:
            place = worker.doing.popleft()
            case = self._cases[place]
            detail = f"{case.id} (seed {case.seed(self._seed)}): its process ended with {how}"
            cause = f"a process ended with {how}"
            seed = case.seed(self._seed)
            yield place, Outcome(case.id, case.op, "failed", detail, seed, 0.0, cause)
            if worker.doing:
                self._waiting.appendleft(worker.doing)
            if self._waiting:
                self._workers.append(self._start())
        elif worker.process.exitcode:
            detail = f"a process ended with {how} after its last case, when it closed its stream"
            yield len(self._cases), Outcome("close", "", "failed", detail, self._seed, 0.0)


def _work(pipe: Connection, spec: str, seed: int) -> None:
    """The worker process: receives lists of case ids and sends an Outcome for each case.

    An empty list ends the process.
    """
    faulthandler.enable()  # a crash leaves a stack on stderr
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends its workers
    try:
        tensorplug.load_all()
        cases = {case.id: case for case in all_cases()}
        backend = tensorplug.open(spec)
    except TensorplugError as error:
        pipe.send(str(error))
        return
    with backend:
        pipe.send(READY)
        while ids := pipe.recv():
            for name in ids:
                pipe.send(check(cases[name], backend, base=seed))

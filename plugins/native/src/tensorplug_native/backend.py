"""`NativeBackend`: the stream of the processor. Work is done when `run()` returns."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tensorplug.device import Array, OptionError, Part, Plan, Rounding, Tensor
from tensorplug_cpu.backend import CPUBackend
from tensorplug_cpu.memory import aligned
from tensorplug_cpu.threads import Workers
from tensorplug_native.library import Level, Poll
from tensorplug_native.plan import NativePlan, ReferencePlan
from tensorplug_native.pool import Pool
from tensorplug_native.rules.products import INT8_LEVELS, rounding

if TYPE_CHECKING:
    from tensorplug_native.device import NativeDevice


class NativeBackend(CPUBackend):
    """Runs plans on `threads` threads: those of a pool, or NumPy's where a node has no kernel."""

    def __init__(
        self,
        device: "NativeDevice",
        threads: int,
        level: Level,
        activations: str,
        processors: Sequence[int] = (),
    ) -> None:
        self.level = level
        self.activations = activations
        self.prefers_f16 = activations == "int8" and level.name in INT8_LEVELS
        self.watch = Watch()
        self._own = self._present = Pool(threads, processors)
        self.caller = Pool(1)
        """The caller's thread, for work that is not worth waking others."""
        self._scratch = aligned(0)
        super().__init__(device, threads)

    @property
    def pool(self) -> Pool:
        """The threads of the moment."""
        return self._present

    def scratch(self, size: int) -> Array:
        """At least `size` bytes for the program that runs; all plans of the stream share them."""
        if self._scratch.size < size:
            self._scratch = aligned(size)
        return self._scratch

    def rounding(self, node: Tensor) -> Rounding:
        """What the product `node` rounds to, by the options of the stream."""
        return rounding(node, self.level.name, self.activations)

    def _resize(self, count: int) -> None:
        super()._resize(count)
        self._own.close()
        self._own = self._present = Pool(count, self._own.processors)

    def set_thread_pool(self, pool: object | None) -> None:
        """Share `pool`, a `Pool`, with other backends; None for threads of one's own again.

        NumPy's kernels share a `Workers` of tensorplug-cpu.
        """
        if pool is None or isinstance(pool, Workers):
            self.team.share(pool)
        elif not isinstance(pool, Pool):
            raise OptionError(
                f"{self.name}: {pool!r} is not a thread pool of tensorplug-native; give a Pool "
                "object"
            )
        if pool is None or isinstance(pool, Pool):
            self._own.close()
            self._present = pool or self._own

    def _plan(self, bound: Part) -> Plan:
        return ReferencePlan(self, bound) if self.use_reference else NativePlan(self, bound)

    def _close(self) -> None:
        self._own.close()
        self.caller.close()
        super()._close()


class Watch:
    """A running program asks it every few milliseconds whether to go on.

    Python also sees Ctrl-C at these times: the error waits here until the run has ended.
    """

    def __init__(self) -> None:
        self._abort: Callable[[], bool] | None = None
        self._error: BaseException | None = None
        answers = self._answers()
        next(answers)
        self.poll = Poll(answers.__next__)

    def begin(self, abort: Callable[[], bool] | None) -> None:
        """Start a run that `abort` may stop."""
        self._abort, self._error = abort, None

    def end(self) -> None:
        """Raise what came up during the run."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _answers(self) -> Iterator[int]:
        # No error can pass through the library. Python raises KeyboardInterrupt when a function
        # starts, before its first `try`; in a generator that continues, within the `try`.
        answer = 0
        while True:
            try:
                while True:
                    yield answer
                    answer = int(self._abort is not None and self._abort())
            except GeneratorExit:
                return
            except BaseException as error:  # noqa: BLE001 - raised when the run has ended
                self._error, answer = error, 1

"""`CPUBackend`: the stream of the processor. Work is done when `run()` returns."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tensorplug.device import Backend, Bindings, OptionError, Part, Plan, Tensor
from tensorplug_cpu.plan import CPUPlan, looking, prepare
from tensorplug_cpu.task import Tools
from tensorplug_cpu.threads import Team, Workers, blas_threads, check_threads

if TYPE_CHECKING:
    from tensorplug_cpu.device import CPUDevice


class CPUBackend(Backend):
    """Runs plans on `threads` threads, those of the BLAS included."""

    abort_callback: Callable[[], bool] | None = None
    """Asked before each node; True stops the run."""
    survives_fork = True
    use_reference: bool = False
    """Whether plans made from now on use the plain f64 functions in place of the kernels."""

    def __init__(self, device: "CPUDevice", threads: int) -> None:
        check_threads(device.name, threads)
        self.team = Team(threads)
        # Last: the device closes its streams, also one whose constructor failed after this.
        super().__init__(device)

    @property
    def threads(self) -> int:
        """Threads that kernels and the BLAS use."""
        return self.team.count

    @threads.setter
    def threads(self, count: int) -> None:
        check_threads(self.name, count)
        self._resize(count)

    def _resize(self, count: int) -> None:
        self.team.resize(count)

    def set_thread_pool(self, pool: object | None) -> None:
        """Share `pool`, a `Workers`, with other backends; None for threads of one's own again."""
        if pool is not None and not isinstance(pool, Workers):
            raise OptionError(
                f"{self.name}: {pool!r} is not a thread pool of tensorplug-cpu; give a Workers "
                "object"
            )
        self.team.share(pool)

    def _plan(self, bound: Part) -> Plan:
        return CPUPlan(self, bound)

    def _compute(self, node: Tensor, bindings: Bindings) -> None:
        with np.errstate(all="ignore"), blas_threads(self.threads):
            for step in prepare(
                node, looking(bindings), Tools(self.team), plain=self.use_reference
            ):
                step()

    def _close(self) -> None:
        self.team.close()

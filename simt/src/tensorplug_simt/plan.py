"""`SimtPlan`: a plan's launches, from its nodes to what the driver is given."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorplug.device import Part, Plan
from tensorplug_simt.merging import Placed, merged
from tensorplug_simt.placing import place
from tensorplug_simt.reuse import reusing

if TYPE_CHECKING:
    from tensorplug_simt.backend import SimtBackend


class SimtPlan(Plan):
    """Launches that are placed, left out where their result is there already, and merged, once for
    each binding. A backend makes them ready for its driver and queues them in `_run`."""

    backend: "SimtBackend"

    def __init__(self, backend: "SimtBackend", bound: Part) -> None:
        super().__init__(backend, bound)
        self._rebind()

    def _rebind(self) -> None:
        device, bindings = self.backend.device, self.bound.bindings
        programs = (place(device, work, bindings) for work in self.bound.work)
        self._bind(merged(reusing(programs)))

    @abstractmethod
    def _bind(self, launches: Sequence[tuple[Placed, ...]]) -> None:
        """Make ready what `_run` queues from now on: for each launch the parts that it has."""

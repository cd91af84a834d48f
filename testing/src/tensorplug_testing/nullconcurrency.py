"""How a fake device runs work side by side: between two barriers in any order."""

import random
from collections.abc import Iterable

from tensorplug.device import Backend
from tensorplug.device.backend import NodePlan
from tensorplug.device.part import Part
from tensorplug.planning.stages import Work, placed


class SideBySide(NodePlan):
    """Puts barriers where memory asks for them; a missing one shows as a wrong result at times."""

    def __init__(self, backend: Backend, bound: Part) -> None:
        super().__init__(backend, bound)
        self._chance = random.Random(len(bound.nodes))
        self._rebind()

    def _rebind(self) -> None:
        self.stages = placed(self.bound).stages

    def _order(self) -> Iterable[Work]:
        for stage in self.stages:
            yield from self._chance.sample(stage, len(stage))

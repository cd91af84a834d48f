"""Concurrency of fake devices: the work between two barriers runs in random order."""

import random
from collections.abc import Iterable

from tensorplug.device import Backend, Part
from tensorplug.device.plan import NodePlan
from tensorplug.planning.stages import Work, stages_of


class SideBySide(NodePlan):
    """A plan with barriers between conflicting accesses; without one, results may be wrong."""

    def __init__(self, backend: Backend, bound: Part) -> None:
        super().__init__(backend, bound)
        self._chance = random.Random(len(bound.nodes))
        self._rebind()

    def _rebind(self) -> None:
        self.stages = stages_of(self.bound)

    def _order(self) -> Iterable[Work]:
        for stage in self.stages:
            yield from self._chance.sample(stage, len(stage))

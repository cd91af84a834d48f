"""`Plans`: plans of closed schedules, kept for later graphs of the same structure."""

from collections.abc import Sequence
from contextlib import ExitStack

from tensorplug.device.backend import Backend
from tensorplug.device.part import Part
from tensorplug.device.plan import Plan

MOST = 32
"""The most plans that are kept."""


class Plans:
    """Plans that no schedule uses, by stream and structure."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Backend, tuple[object, ...]], list[Plan]] = {}

    def take(self, backend: Backend, bound: Part) -> Plan:
        """A kept plan with the structure of `bound`, bound to it, or a new plan."""
        # A key costs as much as a pass over the graph.
        kept = self._kept.get((backend, bound.key)) if self._kept else None
        if not kept:
            return backend.plan(bound)
        plan = kept.pop()
        plan.rebind(bound)
        return plan

    def give(self, plans: Sequence[Plan], *, close: bool) -> None:
        """Keep plans for later, or `close` them; those beyond MOST are closed too."""
        with ExitStack() as stack:
            for plan in plans:
                if plan.closed:
                    continue
                if close or sum(map(len, self._kept.values())) >= MOST:
                    stack.callback(plan.close)
                else:
                    self._kept.setdefault((plan.backend, plan.bound.key), []).append(plan)

    def release(self) -> None:
        """Close all plans; later ones may be kept again."""
        kept, self._kept = self._kept, {}
        with ExitStack() as stack:
            for plans in kept.values():
                for plan in plans:
                    stack.callback(plan.close)

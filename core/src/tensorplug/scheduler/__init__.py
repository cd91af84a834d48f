"""Scheduling: graphs over several backends, as immutable schedules that say why."""

from tensorplug.scheduler.execute import Observer
from tensorplug.scheduler.explain import Explanation
from tensorplug.scheduler.results import InFlight, Results
from tensorplug.scheduler.schedule import Schedule
from tensorplug.scheduler.scheduler import Scheduler

__all__ = ["Explanation", "InFlight", "Observer", "Results", "Schedule", "Scheduler"]

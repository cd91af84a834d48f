"""Scheduling: graphs over several backends, as immutable schedules that say why."""

from tensorplug.planning.explain import Explanation
from tensorplug.running.results import InFlight, Results
from tensorplug.running.run import Observer
from tensorplug.running.schedule import Schedule
from tensorplug.running.scheduler import Scheduler

__all__ = ["Explanation", "InFlight", "Observer", "Results", "Schedule", "Scheduler"]

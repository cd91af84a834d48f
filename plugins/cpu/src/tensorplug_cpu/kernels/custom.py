"""Functions of the user, called with arrays on the memory of the graph."""

from collections.abc import Sequence
from functools import partial

from tensorplug.ops.custom import CALLING, call_function
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step


@kernel(*sorted(CALLING))
def call(task: Task) -> Sequence[Step]:
    """One call per run, or one for each part of the work, on all threads."""
    sources = [operand.array for operand in task.operands if operand is not None]
    once = partial(call_function, task.node, task.out.array, sources)
    count, workers = task.integer("n_tasks"), task.tools.workers
    if not count:
        return [once]
    nth = workers.count if count < 0 else count
    return [partial(workers.run, [partial(once, ith=ith, nth=nth) for ith in range(nth)])]

"""Steps of an optimizer, written over weights and state."""

from collections.abc import Callable, Sequence

import numpy as np

from tensorplug.device import Array
from tensorplug_cpu.task import Task, kernel

_F32 = np.float32


def _step(task: Task, update: Callable[[Array], None]) -> Sequence[Callable[[], None]]:
    settings = task["settings"].array
    return [lambda: update(settings.reshape(-1))]


@kernel("opt_step_adamw")
def opt_step_adamw(task: Task) -> Sequence[Callable[[], None]]:
    """New moments first, then the weights, each in its place."""
    x, m, v, grad = task.out.array, task["m"].array, task["v"].array, task["grad"].array

    def update(settings: Array) -> None:
        rate, b1, b2, eps, decay, c1, c2 = settings
        m[...] = m * b1 + grad * (_F32(1) - b1)
        v[...] = v * b2 + grad * grad * (_F32(1) - b2)
        x[...] = x * (_F32(1) - rate * decay) - rate * (m * c1) / (np.sqrt(v * c2) + eps)

    return _step(task, update)


@kernel("opt_step_sgd")
def opt_step_sgd(task: Task) -> Sequence[Callable[[], None]]:
    """The weights decay and go down the gradient."""
    x, grad = task.out.array, task["grad"].array

    def update(settings: Array) -> None:
        rate, decay = settings
        x[...] = x * (_F32(1) - rate * decay) - rate * grad

    return _step(task, update)

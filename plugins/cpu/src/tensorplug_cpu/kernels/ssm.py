"""State space models: convolution over time, selective scan."""

from collections.abc import Sequence

from tensorplug_cpu.kernels.sums import sum_of_products
from tensorplug_cpu.task import Task, kernel
from tensorplug_cpu.threads import Step


@kernel("ssm_conv")
def ssm_conv(task: Task) -> Sequence[Step]:
    """One product for each step that the kernel looks back."""
    x, weights = task["x"].array, task["kernel"].array
    tokens = task.out.array.shape[2]
    pairs = [
        (x[..., i : i + tokens].swapaxes(-1, -2), weights[:, :, None, :, i])
        for i in range(weights.shape[3])
    ]
    return sum_of_products(task, pairs, task.out.array)

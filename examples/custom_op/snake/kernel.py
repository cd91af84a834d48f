"""The kernel of `acme.snake`, one text for OpenCL, CUDA and Metal."""

from tensorplug import Tensor
from tensorplug_simt.facts import Facts
from tensorplug_simt.grids import per_element
from tensorplug_simt.lowering import lowers, number
from tensorplug_simt.program import Kernel, Program

SNAKE = Kernel(
    "snake",
    "snake:snake.k",
    buffers=("x", "y"),
    writes=("y",),
    numbers=(("count", "uint"), ("a", "float")),
)


@lowers("acme.snake")
def snake(node: Tensor, facts: Facts) -> Program:
    """One item for each element; the reason of a refusal would be raised as NoKernel."""
    places, numbers = {"x": node.sources[0], "y": node}, {"a": number(node, "a")}
    return Program((per_element(SNAKE, places, node.size, facts, numbers=numbers),))

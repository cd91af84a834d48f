"""Functions of the user, called with arrays on the memory of the graph."""

from collections.abc import Callable, Sequence

from tensorplug.errors import GraphError
from tensorplug_cpu.task import Task, kernel


@kernel("map_custom1", "map_custom2", "map_custom3", "custom")
def call(task: Task) -> Sequence[Callable[[], None]]:
    """One call per run. Raises GraphError from whatever the function raises."""
    node, function = task.node, task.node.params["function"]
    assert callable(function)
    result = task.out.array.reshape(node.shape)
    given = [
        operand.array.reshape(source.shape)
        for operand, source in zip(
            (o for o in task.operands if o is not None), node.sources, strict=True
        )
    ]

    def step() -> None:
        try:
            function(result, *given)
        except Exception as error:
            name = getattr(function, "__qualname__", repr(function))
            raise GraphError(
                f"{node}: its function {name} raised {type(error).__name__}: {error}"
            ) from error

    return [step]

"""Cases of steps of optimizers. A step of AdamW writes three tensors."""

import numpy as np

from tensorplug_testing.cases.case import Arg, Array, Case, Data, uniform

_SHAPES = [(10, 5, 4, 3), (7, 5), (1,), (1025,), (3, 0)]
_LAYOUTS = ("plain", "permuted", "transposed", "rows", "columns", "shifted")


def _adamw(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    settings = [1e-2, 0.9, 0.99, 1e-6, float(rng.uniform(0, 0.1)), 1.5, 2.0]
    return np.array(settings).reshape(shape)


_ADAMW, _SGD = Data("adamw", _adamw), uniform(0.01, 0.1)


def adamw(ne: tuple[int, ...], x: str = "plain", state: str = "plain") -> Case:
    """A step with weights and gradients in the layout `x`, and the state in the layout `state`."""
    positive = uniform(0, 1)
    args = (
        Arg(ne, layout=x),
        Arg(ne, layout=x),
        Arg(ne, layout=state),
        Arg(ne, layout=state, data=positive),
    )
    return Case(op="opt_step_adamw", args=(*args, Arg((7,), data=_ADAMW)))


def sgd(ne: tuple[int, ...], x: str = "plain", grad: str = "plain") -> Case:
    """A step of gradient descent."""
    args = (Arg(ne, layout=x), Arg(ne, layout=grad), Arg((2,), data=_SGD))
    return Case(op="opt_step_sgd", args=args)


CASES = [
    *[step(ne) for step in (adamw, sgd) for ne in _SHAPES],
    *[
        step((7, 5, 3, 2), a, b)
        for step in (adamw, sgd)
        for a, b in zip(_LAYOUTS, _LAYOUTS[::-1], strict=True)
    ],
]

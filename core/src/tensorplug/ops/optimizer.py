"""Steps of optimizers: they write new values over weights and over the optimizer's state."""

from tensorplug.graph.tensor import Tensor
from tensorplug.ops.copy import cont
from tensorplug.ops.rules import (
    ONLY_F32,
    check_written,
    overlap,
    same_shape_as,
    same_shapes,
    same_type_as,
)
from tensorplug.ops.split import aligned
from tensorplug.ops.table import Alias, Call, Check, Op, Source, apply, register_op


def _over_weights(call: Call) -> Alias:
    return Alias(call["x"], 0, call["x"].nb)


def _settings(count: int) -> Check:
    def check(call: Call) -> None:
        if call["settings"].ne != (count, 1, 1, 1):
            raise call.fail(f"settings must be a vector of {count} numbers")

    return check


def _apart(*written: str) -> Check:
    """What a step writes overlaps none of its other sources."""

    def check(call: Call) -> None:
        for i, name in enumerate(written):
            for other in (*written[:i], "grad", "settings"):
                if overlap(call[other], call[name], equal=True):
                    raise call.fail(f"{other} and {name} overlap; give each memory of its own")

    return check


OPT_STEP_ADAMW = register_op(
    Op(
        "opt_step_adamw",
        sources=tuple(Source(name, ONLY_F32) for name in ("x", "grad", "m", "v", "settings")),
        shape=same_shape_as("x"),
        dtype=same_type_as("x"),
        check=(
            *(same_shapes("x", name) for name in ("grad", "m", "v")),
            _settings(7),
            _apart("x", "m", "v"),
            check_written("x", "m", "v"),
        ),
        alias=_over_weights,
        writes=True,
        also_writes=("m", "v"),
        split=aligned("x", "grad", "m", "v"),
        formula="m = b1 * m + (1 - b1) * grad; v = b2 * v + (1 - b2) * grad**2; "
        "x = x * (1 - rate * decay) - rate * m * c1 / (sqrt(v * c2) + eps); y is x",
        origin="Loshchilov and Hutter 2017, arXiv:1711.05101",
    )
)

OPT_STEP_SGD = register_op(
    Op(
        "opt_step_sgd",
        sources=tuple(Source(name, ONLY_F32) for name in ("x", "grad", "settings")),
        shape=same_shape_as("x"),
        dtype=same_type_as("x"),
        check=(same_shapes("x", "grad"), _settings(2), _apart("x"), check_written("x")),
        alias=_over_weights,
        writes=True,
        split=aligned("x", "grad"),
        formula="x = x * (1 - rate * decay) - rate * grad; y is x",
    )
)


def opt_step_adamw(
    x: Tensor, grad: Tensor, m: Tensor, v: Tensor, settings: Tensor, *, name: str = ""
) -> Tensor:
    """One step of AdamW: an effect that writes `x` and its moments `m` and `v`.

    `x`, `grad`, `m` and `v` are f32 of one shape. `settings` is f32 [7]: rate, b1, b2, eps, decay,
    and the corrections c1 = 1 / (1 - b1**t) and c2 = 1 / (1 - b2**t) of step t. The result is `x`
    after the step. A gradient or settings that lie in what the step writes are copied first.
    Raises ShapeError.

    >>> with tp.open("cpu") as cpu:
    ...     w, m, v = (cpu.place(name, np.zeros((2, 3), np.float32)) for name in "wmv")
    ...     grad, settings = tp.input("grad", (2, 3), tp.F32), tp.input("settings", (7,), tp.F32)
    ...     stepped = tp.opt_step_adamw(w, grad, m, v, settings)
    >>> stepped.shape
    (2, 3)
    """
    grad, settings = (_read_first(t, x, m, v) for t in (grad, settings))
    return apply(OPT_STEP_ADAMW, x, grad, m, v, settings, name=name)


def opt_step_sgd(x: Tensor, grad: Tensor, settings: Tensor, *, name: str = "") -> Tensor:
    """One step of gradient descent: an effect that writes `x`.

    `x` and `grad` are f32 of one shape; `settings` is f32 [2]: rate and decay. A gradient or
    settings that lie in `x` are copied first. Raises ShapeError.

    >>> with tp.open("cpu") as cpu:
    ...     w = cpu.place("w", np.zeros((2, 3), np.float32))
    ...     grad, settings = tp.input("grad", (2, 3), tp.F32), tp.input("settings", (2,), tp.F32)
    ...     stepped = tp.opt_step_sgd(w, grad, settings)
    >>> stepped.shape
    (2, 3)
    """
    grad, settings = (_read_first(t, x) for t in (grad, settings))
    return apply(OPT_STEP_SGD, x, grad, settings, name=name)


def _read_first(source: Tensor, *written: Tensor) -> Tensor:
    """A source of a step, as a copy where the step may overwrite it."""
    return cont(source) if any(overlap(source, t, equal=True) for t in written) else source

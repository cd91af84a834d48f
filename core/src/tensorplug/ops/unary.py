"""Functions of one element. Each takes f32, f16 or bf16 and keeps the type and the shape."""

from tensorplug.graph.tensor import Tensor
from tensorplug.ops.rules import REAL, same_shape_as, same_type_as
from tensorplug.ops.split import aligned, any_of, linear
from tensorplug.ops.table import Op, Param, Source, apply, register_op

_FORMULAS = {
    "sqr": "y = x**2",
    "sqrt": "y = sqrt(x)",
    "log": "y = ln(x)",
    "sin": "y = sin(x)",
    "cos": "y = cos(x)",
    "abs": "y = |x|",
    "sgn": "y = sign(x), 0 at 0",
    "neg": "y = -x",
    "step": "y = 1 if x > 0 else 0",
    "tanh": "y = tanh(x)",
    "elu": "y = x if x > 0 else exp(x) - 1",
    "relu": "y = max(x, 0)",
    "sigmoid": "y = 1 / (1 + exp(-x))",
    "gelu": "y = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3)))",
    "gelu_quick": "y = x / (1 + exp(-1.702 * x))",
    "gelu_erf": "y = x/2 * (1 + erf(x / sqrt(2)))",
    "silu": "y = x / (1 + exp(-x))",
    "hardswish": "y = x * clamp((x + 3) / 6, 0, 1)",
    "hardsigmoid": "y = clamp((x + 3) / 6, 0, 1)",
    "exp": "y = exp(x)",
    "expm1": "y = exp(x) - 1",
    "softplus": "y = x if x > 20 else ln(1 + exp(x))",
    "floor": "y = largest integer <= x",
    "ceil": "y = smallest integer >= x",
    "round": "y = nearest integer, halves away from zero",
    "trunc": "y = integer part of x, toward zero",
}

UNARY = {
    name: register_op(
        Op(
            name,
            sources=(Source("x", REAL),),
            shape=same_shape_as("x"),
            dtype=same_type_as("x"),
            in_place=("x",),
            split=any_of(aligned("x"), linear("x")) if name == "neg" else aligned("x"),
            formula=formula,
        )
    )
    for name, formula in _FORMULAS.items()
}

XIELU = register_op(
    Op(
        "xielu",
        sources=(Source("x", REAL),),
        params=tuple(
            Param(name, float, required=True) for name in ("alpha_n", "alpha_p", "beta", "eps")
        ),
        shape=same_shape_as("x"),
        dtype=same_type_as("x"),
        in_place=("x",),
        split=aligned("x"),
        formula="y = alpha_p*x**2 + beta*x if x > 0 else (expm1(min(x, eps)) - x)*alpha_n + beta*x",
        origin="Huang and Schlag 2024, arXiv:2411.13010",
    )
)


def unary(op: str, x: Tensor, *, name: str = "") -> Tensor:
    """Apply the function called `op` (a key of `UNARY`) to each element of `x`.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.unary("relu", x).shape
    (2, 3)
    """
    return apply(UNARY[op], x, name=name)


def sqr(x: Tensor, *, name: str = "") -> Tensor:
    """Square of each element.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.sqr(x).shape
    (2, 3)
    """
    return apply(UNARY["sqr"], x, name=name)


def sqrt(x: Tensor, *, name: str = "") -> Tensor:
    """Square root of each element.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.sqrt(x).shape
    (2, 3)
    """
    return apply(UNARY["sqrt"], x, name=name)


def log(x: Tensor, *, name: str = "") -> Tensor:
    """Natural logarithm of each element.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.log(x).shape
    (2, 3)
    """
    return apply(UNARY["log"], x, name=name)


def sin(x: Tensor, *, name: str = "") -> Tensor:
    """Sine of each element.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.sin(x).shape
    (2, 3)
    """
    return apply(UNARY["sin"], x, name=name)


def cos(x: Tensor, *, name: str = "") -> Tensor:
    """Cosine of each element.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.cos(x).shape
    (2, 3)
    """
    return apply(UNARY["cos"], x, name=name)


def abs(x: Tensor, *, name: str = "") -> Tensor:
    """Absolute value of each element.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.abs(x).shape
    (2, 3)
    """
    return apply(UNARY["abs"], x, name=name)


def sgn(x: Tensor, *, name: str = "") -> Tensor:
    """Sign of each element, 0 at 0.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.sgn(x).shape
    (2, 3)
    """
    return apply(UNARY["sgn"], x, name=name)


def neg(x: Tensor, *, name: str = "") -> Tensor:
    """Negative of each element.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.neg(x).shape
    (2, 3)
    """
    return apply(UNARY["neg"], x, name=name)


def step(x: Tensor, *, name: str = "") -> Tensor:
    """1 where an element is positive, else 0.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.step(x).shape
    (2, 3)
    """
    return apply(UNARY["step"], x, name=name)


def tanh(x: Tensor, *, name: str = "") -> Tensor:
    """Hyperbolic tangent of each element.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.tanh(x).shape
    (2, 3)
    """
    return apply(UNARY["tanh"], x, name=name)


def elu(x: Tensor, *, name: str = "") -> Tensor:
    """Exponential linear unit of each element.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.elu(x).shape
    (2, 3)
    """
    return apply(UNARY["elu"], x, name=name)


def relu(x: Tensor, *, name: str = "") -> Tensor:
    """Rectified linear unit of each element.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.relu(x).shape
    (2, 3)
    """
    return apply(UNARY["relu"], x, name=name)


def sigmoid(x: Tensor, *, name: str = "") -> Tensor:
    """Logistic function of each element.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.sigmoid(x).shape
    (2, 3)
    """
    return apply(UNARY["sigmoid"], x, name=name)


def gelu(x: Tensor, *, name: str = "") -> Tensor:
    """Gaussian error linear unit of each element, approximated by tanh.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.gelu(x).shape
    (2, 3)
    """
    return apply(UNARY["gelu"], x, name=name)


def gelu_quick(x: Tensor, *, name: str = "") -> Tensor:
    """Gaussian error linear unit of each element, approximated by the logistic function.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.gelu_quick(x).shape
    (2, 3)
    """
    return apply(UNARY["gelu_quick"], x, name=name)


def gelu_erf(x: Tensor, *, name: str = "") -> Tensor:
    """Gaussian error linear unit of each element, by the exact erf formula.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.gelu_erf(x).shape
    (2, 3)
    """
    return apply(UNARY["gelu_erf"], x, name=name)


def silu(x: Tensor, *, name: str = "") -> Tensor:
    """Sigmoid linear unit of each element.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.silu(x).shape
    (2, 3)
    """
    return apply(UNARY["silu"], x, name=name)


def hardswish(x: Tensor, *, name: str = "") -> Tensor:
    """Hard swish of each element: `x * clamp((x + 3) / 6, 0, 1)`.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.hardswish(x).shape
    (2, 3)
    """
    return apply(UNARY["hardswish"], x, name=name)


def hardsigmoid(x: Tensor, *, name: str = "") -> Tensor:
    """Hard sigmoid of each element: `clamp((x + 3) / 6, 0, 1)`.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.hardsigmoid(x).shape
    (2, 3)
    """
    return apply(UNARY["hardsigmoid"], x, name=name)


def exp(x: Tensor, *, name: str = "") -> Tensor:
    """Exponential of each element.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.exp(x).shape
    (2, 3)
    """
    return apply(UNARY["exp"], x, name=name)


def expm1(x: Tensor, *, name: str = "") -> Tensor:
    """Exponential minus 1 of each element.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.expm1(x).shape
    (2, 3)
    """
    return apply(UNARY["expm1"], x, name=name)


def softplus(x: Tensor, *, name: str = "") -> Tensor:
    """`ln(1 + exp(x))` of each element; `x` itself above 20.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.softplus(x).shape
    (2, 3)
    """
    return apply(UNARY["softplus"], x, name=name)


def floor(x: Tensor, *, name: str = "") -> Tensor:
    """Largest integer not above each element.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.floor(x).shape
    (2, 3)
    """
    return apply(UNARY["floor"], x, name=name)


def ceil(x: Tensor, *, name: str = "") -> Tensor:
    """Smallest integer not below each element.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.ceil(x).shape
    (2, 3)
    """
    return apply(UNARY["ceil"], x, name=name)


def round(x: Tensor, *, name: str = "") -> Tensor:
    """Nearest integer of each element; halves are rounded away from zero.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.round(x).shape
    (2, 3)
    """
    return apply(UNARY["round"], x, name=name)


def trunc(x: Tensor, *, name: str = "") -> Tensor:
    """Integer part of each element: rounded toward zero.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.trunc(x).shape
    (2, 3)
    """
    return apply(UNARY["trunc"], x, name=name)


def xielu(
    x: Tensor, *, alpha_n: float, alpha_p: float, beta: float, eps: float, name: str = ""
) -> Tensor:
    """Expanded integral of the exponential linear unit (xIELU) of each element.

    `alpha_n` and `alpha_p` are used as given: the softplus of the paper is already applied. Source:
    Huang and Schlag 2024, arXiv:2411.13010.

    >>> x = tp.input("x", (2, 3), tp.F32)
    >>> tp.xielu(x, alpha_n=0.8, alpha_p=0.8, beta=0.5, eps=-1e-6).shape
    (2, 3)
    """
    return apply(
        XIELU,
        x,
        alpha_n=float(alpha_n),
        alpha_p=float(alpha_p),
        beta=float(beta),
        eps=float(eps),
        name=name,
    )

"""The error function, which NumPy lacks."""

import math
from collections.abc import Sequence
from functools import cache, partial

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from tensorplug.device import Array
from tensorplug_cpu.threads import Step
from tensorplug_cpu.tiles import Temporaries

_LAST = 10.5
"""erfc(10.5) is 7e-50, and exp(-10.5**2) is 0 in f32."""
_DEGREE = 10


@cache
def _coefficients() -> tuple[np.float32, ...]:
    """Polynomial in `u` for `erfc(z) * exp(z**2) / t`, highest power first.

    `t = 1 / (1 + z / 2)` maps 0..inf to 1..0, and `u` maps the range of `t` to -1..1. Interpolated
    at Chebyshev points; the relative error is below 1e-7.
    """

    def scaled(u: Array) -> Array:
        t = _t(u)
        z = 2 / t - 2
        return np.array([math.erfc(v) * math.exp(v * v) for v in z]) / t

    series = Chebyshev.interpolate(scaled, _DEGREE)
    return tuple(np.float32(c) for c in reversed(series.convert(kind=Polynomial).coef))


def _t(u: Array) -> Array:
    last = 1 / (1 + _LAST / 2)
    return (1 + last) / 2 + u * (1 - last) / 2


def erfc_steps(z: Array, out: Array, scratch: Temporaries) -> Sequence[Step]:
    """Steps that write erfc(z) into `out` for z >= 0; `z` is used up, `out` lies elsewhere."""
    last = 1 / (1 + _LAST / 2)
    t, u = scratch(z.shape), scratch(z.shape)
    steps: list[Step] = [
        partial(np.minimum, z, np.float32(_LAST), out=z),
        partial(np.multiply, z, np.float32(0.5), t),
        partial(np.add, t, np.float32(1), t),
        partial(np.reciprocal, t, t),
        partial(np.subtract, t, np.float32((1 + last) / 2), u),
        partial(np.multiply, u, np.float32(2 / (1 - last)), u),
        partial(np.copyto, out, _coefficients()[0]),
    ]
    for coefficient in _coefficients()[1:]:
        steps += [partial(np.multiply, out, u, out), partial(np.add, out, coefficient, out)]
    return [
        *steps,
        partial(np.multiply, out, t, out),
        partial(np.multiply, z, z, z),
        partial(np.negative, z, z),
        partial(np.exp, z, z),
        partial(np.multiply, out, z, out),
    ]

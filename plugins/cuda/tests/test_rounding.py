"""What the products of this backend declare to round."""

import pytest

import tensorplug as tp
from tensorplug.device import Rounding
from tensorplug_cuda.kernels.roundings import declared
from tensorplug_simt.facts import Facts

BYTES = Facts(wide=False, int_dot=True, int8_activations=True)
LARGE = Facts(wide=False, halves_from=2**27)
TENSOR = Facts(wide=False, halves_from=0)


def product(dtype, rows, columns=256, precision="default"):
    w, x = tp.input("w", (columns, 256), dtype), tp.input("x", (rows, 256), tp.F32)
    return tp.mul_mat(w, x, precision=precision)


@pytest.mark.parametrize(
    ("facts", "node", "rounds"),
    [
        (BYTES, product(tp.Q4_0, 16), Rounding.BYTES),
        (BYTES, product(tp.Q4_0, 17), Rounding.NONE),
        (BYTES, product(tp.Q4_0, 16, precision="f32"), Rounding.NONE),
        (BYTES, product(tp.F16, 16), Rounding.NONE),
        (Facts(wide=False), product(tp.Q4_0, 16), Rounding.NONE),
        (TENSOR, product(tp.F16, 64), Rounding.HALVES),
        (TENSOR, product(tp.F16, 64, precision="f32"), Rounding.NONE),
        (TENSOR, product(tp.F32, 64), Rounding.NONE),
        (LARGE, product(tp.F16, 64), Rounding.NONE),
        (LARGE, product(tp.F16, 2048, 256), Rounding.HALVES),
    ],
)
def test_rounding_is_declared_for_what_may_compute_a_product(facts, node, rounds):
    assert declared(node, facts) == rounds

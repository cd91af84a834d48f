"""Products that round `x` to eight bits: near enough, asked for by an option, refused by a node."""

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.testing.cases import LARGE, SMALL
from tensorplug.testing.cases.laid import lay
from tensorplug.testing.running import run
from tensorplug_native.library import library

BEST = list(library().levels)[-1]
PRODUCTS = [case for case in (*SMALL, *LARGE) if case.op == "mul_mat"]
TYPES = [tp.Q8_0, tp.Q4_0, tp.Q4_1, tp.Q5_0, tp.Q5_1, tp.Q4_K, tp.Q5_K, tp.Q6_K]


@pytest.fixture(scope="module")
def rounding(device):
    with device.open(threads=2, activations="int8") as backend:
        yield backend


@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case.id)
def test_product_is_as_near_as_the_kit_asks(case, device, rounding):
    laid = lay(case, device.buffer_type)
    laid.write_leafs()

    rounding.compute(laid.bound)

    assert laid.problem() == ""


def product(dtype, precision="default"):
    """A product of random blocks with 13 rows, and its values."""
    rng = np.random.default_rng(3)
    blocks = rng.integers(0, 256, (70 * 768 // dtype.block, dtype.size), dtype=np.uint8)
    for at in {tp.Q6_K: (208,)}.get(dtype, (0, 2)):
        blocks[:, at : at + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    w, x = tp.input("w", (70, 768), dtype), tp.input("x", (13, 768), tp.F32)
    values = {w: blocks.reshape(70, -1), x: rng.normal(size=(13, 768)).astype(np.float32)}
    return tp.apply(tp.OPS["mul_mat"], w, x, precision=precision), values


@pytest.mark.skipif(BEST != "avx512", reason="this processor has no integer dot products")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rounding_changes_results_by_less_than_a_hundredth(device, backend, rounding, dtype):
    node, values = product(dtype)

    exact, rounded = run(backend, node, values), run(rounding, node, values)

    apart = np.linalg.norm(rounded - exact) / np.linalg.norm(exact)
    assert 1e-4 < apart < 1e-2


def test_a_node_that_asks_for_f32_is_not_rounded(backend, rounding):
    node, values = product(tp.Q8_0, "f32")

    np.testing.assert_allclose(
        run(rounding, node, values), run(backend, node, values), rtol=1e-4, atol=1e-4
    )


def test_rounding_is_asked_for_by_one_of_two_words(device):
    with pytest.raises(tp.OptionError) as caught:
        device.open(activations="int4")

    assert str(caught.value) == ("cpu:0: option activations='int4'; choose from f32, int8")

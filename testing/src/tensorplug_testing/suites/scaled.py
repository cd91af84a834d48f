"""Parts of graphs: products whose weights have a separate scale for each matrix."""

import tensorplug as tp
from tensorplug.device import Tensor
from tensorplug_testing.suites.drawing import Draw

EXPERTS, CHOSEN = 8, 2


def scaled_product(draw: Draw, dtype: tp.DType, tokens: int, *, bias: bool) -> Tensor:
    product = tp.mul_mat(draw.weights(96, 256, dtype=dtype), draw.input(tokens, 256))
    scaled = product * draw.scales(1)
    return scaled + draw.input(96) if bias else scaled


def gated_scaled(draw: Draw, dtype: tp.DType, tokens: int, *, bias: bool) -> Tensor:
    x = draw.input(tokens, 64)
    gate, up = (tp.mul_mat(draw.weights(96, 64, dtype=dtype), x) * draw.scales(1) for _ in range(2))
    return tp.swiglu(gate + draw.input(96) if bias else gate, up)


def scaled_experts(draw: Draw, tokens: int, *, bias: bool) -> Tensor:
    x, ids = _columns(draw, tokens)
    return _of_expert(draw, tp.F16, x, ids, bias=bias)


def gated_scaled_experts(draw: Draw, dtype: tp.DType, tokens: int, *, bias: bool) -> Tensor:
    x, ids = _columns(draw, tokens)
    return tp.swiglu_oai(*(_of_expert(draw, dtype, x, ids, bias=bias) for _ in range(2)))


def _columns(draw: Draw, tokens: int) -> tuple[Tensor, Tensor]:
    ids = draw.rows(CHOSEN * tokens, EXPERTS).reshape(tokens, CHOSEN)
    return draw.input(tokens, 1, 64), ids


def _of_expert(draw: Draw, dtype: tp.DType, x: Tensor, ids: Tensor, *, bias: bool) -> Tensor:
    """A product with the scale of its expert; one token needs no copy of the scales."""
    tokens = x.shape[0]
    product = tp.mul_mat_id(draw.weights(EXPERTS, 32, 64, dtype=dtype), x, ids)
    scales = draw.scales(EXPERTS).reshape(1, EXPERTS, 1)
    if tokens > 1:
        scales = tp.repeat(scales, (tokens, EXPERTS, 1))
    scaled = product * tp.get_rows(scales, ids)
    return tp.add_id(scaled, draw.input(EXPERTS, 32), ids) if bias else scaled

"""Groups of nodes that shared kernels do not take, and why."""

import pytest

import tensorplug as tp
from tensorplug.device import Tensor
from tensorplug.fusion.library import GATED_DELTA_NET_CPY, RMS_NORM_ROPE
from tensorplug.fusion.matching import find_groups
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import lower_group
from tensorplug_simt.own.chains import CHAINS

GPU = Facts(wide=False, subgroup=32)


def leaf(*shape: int, name: str = "x", dtype: tp.DType = tp.F32) -> Tensor:
    return tp.input(name, shape, dtype)


def _turned(heads: Tensor) -> Tensor:
    return tp.rope(heads, leaf(heads.shape[-3], name="positions", dtype=tp.I32), dims=32)


def _norm_of_all_heads() -> Tensor:
    return _turned((tp.rms_norm(leaf(5, 96)) * leaf(96)).reshape(5, 3, 32))


def _weights_of_heads_seen_as_others() -> Tensor:
    return _turned((tp.rms_norm(leaf(5, 6, 32)) * leaf(6, 32)).reshape(10, 3, 32))


def _states_in_columns() -> Tensor:
    heads, gates = [leaf(1, 2, 2, 4) for _ in range(3)], [leaf(1, 2, 2, 1) for _ in range(2)]
    net = tp.gated_delta_net(*heads, *gates, leaf(1, 2, 4, 4))
    return tp.cpy(net[2:], leaf(4, 16, name="cache")[:, :8])


@pytest.mark.parametrize(
    ("build", "pattern", "reason"),
    [
        (_norm_of_all_heads, RMS_NORM_ROPE, "rms_norm_rope: no kernel for a norm of"),
        (_weights_of_heads_seen_as_others, RMS_NORM_ROPE, "rms_norm_rope: no kernel for heads of"),
        (_states_in_columns, GATED_DELTA_NET_CPY, "gated_delta_net_cpy: no kernel for states in"),
    ],
)
def test_group_that_no_kernel_takes_is_refused_with_a_reason(build, pattern, reason) -> None:
    (group,) = find_groups(tp.Graph([build()]), [pattern])

    refusal = lower_group(group, GPU, CHAINS)

    assert isinstance(refusal, tp.Refusal)
    assert refusal.reason.startswith(reason)

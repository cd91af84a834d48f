"""`WeightTests`: weights can be overwritten between runs, and the next run reads the new data."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import (
    Array,
    BufferType,
    Device,
    SupportsHostImport,
    Tensor,
    leaf,
    place,
    place_in,
    transfer,
)
from tensorplug.dtypes import DTYPES
from tensorplug_cpu import reference
from tensorplug_testing.cases.blocks import SCATTERED, random_rows
from tensorplug_testing.cases.compare import normalised_error
from tensorplug_testing.suites.abilities import needs
from tensorplug_testing.suites.work import Planned, Rig, Suite

TYPES = [dtype for dtype in DTYPES if dtype.is_block or dtype.is_float]
FEW = [tp.F32, tp.F16, tp.Q4_0, tp.Q6_K]
"""Types at tier smoke."""
ROW = 256
LIMIT = 5e-4
"""Limit of the normalised square error. Devices may round the other source of a product."""


@dataclass(frozen=True, slots=True)
class Use:
    """An op that reads weights: their shape, and the op's other source."""

    shape: tuple[int, ...]
    build: Callable[[Tensor], Tensor]


def _x(*shape: int) -> Tensor:
    return tp.input("x", shape, tp.F32)


def _ids(*shape: int) -> Tensor:
    return tp.input("ids", shape, tp.I32)


USES = {
    "mul_mat": Use((9, ROW), lambda w: tp.mul_mat(w, _x(1, ROW))),
    "get_rows": Use((6, ROW), lambda w: tp.get_rows(w, _ids(4))),
    "mul_mat_id": Use((4, 3, ROW), lambda w: tp.mul_mat_id(w, _x(3, 1, ROW), _ids(3, 2))),
}
"""Uses of weights by op. The sizes are those of the first case of each type, so that kernels are
compiled only once."""


class WeightTests(Suite):
    """A plan runs, its weights are overwritten, and it runs again."""

    @pytest.mark.parametrize("op", USES)
    def test_plan_reads_weights_that_are_written_after_a_run(
        self, work: Rig, device: Device, op: str, request: pytest.FixtureRequest
    ) -> None:
        types = FEW if request.config.getoption("tensorplug_tier", "ci") == "smoke" else TYPES
        memory = [(t, kind) for t in types for kind in _memory(device, op, t)]
        if not memory:
            pytest.skip(f"{device.name} does not support {op}")

        for dtype, kind in memory:
            weights, planned = _planned(work, op, dtype, kind)
            for seed in range(3):
                data = _stored(dtype, weights.shape, seed)
                transfer.write(weights, data)
                _check(planned, weights, data, f"in {kind.name} memory, write {seed + 1}")

    @pytest.mark.parametrize("dtype", [tp.F32, tp.F16, tp.Q8_0], ids=str)
    @pytest.mark.parametrize("op", USES)
    def test_plan_reads_weights_that_are_copied_and_filled_after_a_run(
        self, work: Rig, device: Device, op: str, dtype: tp.DType
    ) -> None:
        kinds = _memory(device, op, dtype)
        if not kinds:
            pytest.skip(f"{device.name}: no {op} of {dtype.name}")
        kind = kinds[0]
        weights, planned = _planned(work, op, dtype, kind)
        data = _stored(dtype, weights.shape, seed=1)
        other = _placed(work, kind, dtype, weights.shape, seed=1)
        planned.compute()

        transfer.copy(other, weights)
        _check(planned, weights, data, "copied")

        transfer.fill(weights, 0)
        _check(planned, weights, np.zeros_like(data), "filled")

    @needs("host_import")
    @pytest.mark.parametrize("dtype", [tp.F32, tp.F16, tp.Q8_0], ids=str)
    def test_plan_reads_imported_weights_that_their_owner_changed(
        self, work: Rig, device: Device, dtype: tp.DType
    ) -> None:
        assert isinstance(device, SupportsHostImport)
        use = USES["mul_mat"]
        memory = _aligned(dtype.row_size(ROW) * use.shape[0])
        buffer = work.keep(device.import_host(memory))
        buffer.usage = tp.WEIGHTS
        weights = place_in(leaf("w", use.shape, dtype), buffer, 0)
        planned = work.plan(use.build(weights))

        for seed in range(2):
            data = _stored(dtype, use.shape, seed)
            memory[:] = np.frombuffer(data.tobytes(), np.uint8)
            _check(planned, weights, data, f"state {seed + 1} of the memory")


def _memory(device: Device, op: str, dtype: tp.DType) -> list[BufferType]:
    """The buffer types from which `device` reads weights of this type."""
    weights = leaf("w", USES[op].shape, dtype)
    node = USES[op].build(weights)
    kinds = (device.buffer_type, *device.extra_buffer_types)
    return [k for k in kinds if k.supports(weights) and not device.refuses(node, {weights: k})]


def _planned(work: Rig, op: str, dtype: tp.DType, kind: BufferType) -> tuple[Tensor, Planned]:
    """Weights in memory of `kind`, and a plan whose other inputs are written."""
    weights = _placed(work, kind, dtype, USES[op].shape)
    planned = work.plan(USES[op].build(weights))
    rng = np.random.default_rng(9)
    for t in (other for other in planned.bound.leafs if other is not weights):
        if t.dtype is tp.I32:
            planned.write({t: rng.integers(0, USES[op].shape[0], t.shape).astype(np.int32)})
        else:
            planned.write({t: rng.uniform(-1, 1, t.shape).astype(np.float32)})
    return weights, planned


def _placed(
    work: Rig, kind: BufferType, dtype: tp.DType, shape: tuple[int, ...], seed: int = 0
) -> Tensor:
    data = _stored(dtype, shape, seed)
    tensor = place("w", data, kind, usage=tp.WEIGHTS, dtype=dtype)
    assert tensor.place is not None
    work.keep(tensor.place.buffer)
    return tensor


def _stored(dtype: tp.DType, shape: tuple[int, ...], seed: int) -> Array:
    """Stored data of a type, different for each seed."""
    rng = np.random.default_rng((dtype.id, seed))
    if dtype in SCATTERED:
        return random_rows(rng, dtype, shape)
    values = reference.encode(dtype, rng.uniform(-1, 1, shape))
    return values.astype(np.float32) if dtype is tp.F32 else values


def _check(planned: Planned, weights: Tensor, data: Array, when: str) -> None:
    (result,) = planned.compute()
    bound = planned.bound
    inputs = {t: planned.read(t) for t in bound.leafs if t is not weights}
    wanted = reference.compute(bound.outputs, {weights: data, **inputs})[bound.outputs[0]]
    error = normalised_error(result.astype(np.float64), wanted)
    assert error <= LIMIT, (
        f"{weights.dtype} {when}: NMSE {error:.2e}; a plan must read them at each run"
    )


def _aligned(size: int) -> Array:
    """Host memory of whole pages, which any device can import."""
    page = 1 << 16
    memory = np.zeros(size + 2 * page, np.uint8)
    start = -memory.ctypes.data % page
    return memory[start : start + size]

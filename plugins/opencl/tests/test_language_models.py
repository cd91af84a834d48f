"""What language models need beyond the kit's cases: long contexts, far positions, long rows."""

from collections.abc import Iterator

import numpy as np
import pytest

import tensorplug as tp
from tensorplug_opencl.device import OpenCLDevice
from tensorplug_opencl.facts import WIDE


@pytest.fixture(params=["0", "1"], ids=["groups", "items"])
def styled(request, driver, monkeypatch) -> Iterator[OpenCLDevice]:
    """A device with the kernels of GPUs, and with those of processors."""
    monkeypatch.setenv(WIDE, request.param)
    with OpenCLDevice("opencl:0", driver) as device:
        yield device


def computed(device, y, values):
    with device.open() as stream, tp.Scheduler([stream]).schedule(y) as run:
        return run.run(values)[y]


@pytest.mark.parametrize("tokens", [1, 2, 5])
@pytest.mark.parametrize("positions", [700, 5000])
def test_long_contexts_are_split_over_groups_and_joined(styled, tokens, positions):
    rng = np.random.default_rng(tokens)
    q = rng.standard_normal((4, tokens, 32)).astype(np.float32)
    k, v = rng.standard_normal((2, 2, positions, 32)).astype(np.float16)
    sinks = rng.standard_normal(4).astype(np.float32)
    inputs = [
        tp.input("q", q.shape, tp.F32),
        tp.input("k", k.shape, tp.F16),
        tp.input("v", v.shape, tp.F16),
    ]
    sink = tp.input("sinks", sinks.shape, tp.F32)
    y = tp.flash_attn_ext(*inputs, None, sink, scale=0.3)

    got = computed(styled, y, dict(zip([*inputs, sink], (q, k, v, sinks), strict=True)))

    scores = 0.3 * q @ np.repeat(k, 2, 0).astype(np.float64).swapaxes(1, 2)
    powers = np.exp(scores)
    total = powers.sum(-1, keepdims=True) + np.exp(sinks.astype(np.float64))[:, None, None]
    wanted = (powers / total @ np.repeat(v, 2, 0)).swapaxes(0, 1)
    assert np.abs(got.reshape(wanted.shape) - wanted).max() < 1e-5


def test_far_positions_turn_as_exactly_as_near_ones(styled):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((3, 1, 64)).astype(np.float32)
    far = np.array([1, 1_000_003, 2_000_000_011], np.int32)
    source, at = tp.input("x", x.shape, tp.F32), tp.input("at", far.shape, tp.I32)
    y = tp.rope(source, at, dims=64, mode="neox", base=500000.0)

    got = computed(styled, y, {source: x, at: far})

    angle = far[:, None, None] * 500000.0 ** (-np.arange(32) / 32)
    first, second = x[..., :32], x[..., 32:]
    cos, sin = np.cos(angle), np.sin(angle)
    wanted = np.concatenate([first * cos - second * sin, first * sin + second * cos], -1)
    assert np.abs(got.reshape(x.shape) - wanted).max() < 2e-6


@pytest.mark.parametrize("length", [2047, 2048, 2049, 10007])
@pytest.mark.parametrize("descending", [False, True], ids=["rising", "falling"])
def test_rows_of_any_length_are_sorted_with_nan_last(styled, length, descending):
    x = np.random.default_rng(length).integers(-50, 50, (2, length)).astype(np.float32)
    x[:, ::97] = np.nan
    source = tp.input("x", x.shape, tp.F32)
    y = tp.argsort(source, descending=descending)

    got = computed(styled, y, {source: x})

    assert np.array_equal(got, np.argsort(-x if descending else x, axis=-1, kind="stable"))


def test_lengths_of_prompts_need_few_programs(styled):
    for tokens in (1, 4, 5, 17, 33, 64):
        sizes = [(2, tokens, 32), (1, tokens + 300, 32), (1, tokens + 300, 32)]
        inputs = [tp.input(n, ne, tp.F32) for n, ne in zip("qkv", sizes, strict=True)]
        y = tp.flash_attn_ext(*inputs, scale=0.2)
        computed(
            styled, y, {t: np.ones(ne, np.float32) for t, ne in zip(inputs, sizes, strict=True)}
        )

    # For one, two or more rows at a time, and those that join parts.
    assert styled.programs.count <= 4

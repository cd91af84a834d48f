"""Convolutions and pooling in many pieces, on several threads, and against sums in closed form."""

import itertools

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.graph.tensor import leaf
from tensorplug_cpu.kernels import conv, pool
from tensorplug_cpu.threads import Team
from tensorplug_testing.running import run

RNG = np.random.default_rng(5)
IMAGES = leaf("images", (2, 6, 13, 17), tp.F32)
FILTERS = leaf("filters", (5, 6, 3, 2), tp.F32)
ONE_PIXEL = leaf("one pixel", (5, 6, 1, 1), tp.F32)
BY_DEPTH = leaf("by depth", (6, 1, 3, 3), tp.F16)
SPREADING = leaf("spreading", (6, 7, 3, 2), tp.F32)
VOLUMES = leaf("volumes", (6, 7, 8, 9), tp.F32)
VOLUME_FILTERS = leaf("volume filters", (6, 3, 2, 3), tp.F32)
SIGNAL = leaf("signal", (6, 40), tp.F32)
SIGNAL_FILTERS = leaf("signal filters", (6, 7, 5), tp.F32)
NODES = {
    "conv_2d": tp.conv_2d(FILTERS, IMAGES, stride=(1, 2), padding=(1, 0)),
    "conv_2d of pixels": tp.conv_2d(ONE_PIXEL, IMAGES),
    "conv_2d_dw": tp.conv_2d_dw(BY_DEPTH, IMAGES, padding=(0, 1), dilation=(2, 1)),
    "conv_3d": tp.conv_3d(
        VOLUME_FILTERS, VOLUMES, n_channels=3, n_batch=2, n_channels_out=2, padding=(0, 0, 1)
    ),
    "conv_transpose_1d": tp.conv_transpose_1d(SIGNAL_FILTERS, SIGNAL, stride=3, padding=2),
    "conv_transpose_2d": tp.conv_transpose_2d(SPREADING, IMAGES, stride=2),
    "pool_1d": tp.pool_1d(IMAGES, kind="avg", size=3, padding=1),
    "pool_2d": tp.pool_2d(IMAGES, size=(2, 3), padding=(0, 1)),
}


def drawn(node):
    return {t: RNG.normal(size=t.shape).astype(t.dtype.storage) for t in tp.Graph(node).leafs}


@pytest.mark.parametrize("name", NODES)
@pytest.mark.parametrize("most", [1, 100, 1000])
def test_many_pieces_give_what_one_gives(monkeypatch, backend, name, most):
    values = drawn(NODES[name])
    wanted = run(backend, NODES[name], values)
    monkeypatch.setattr(conv, "COLUMNS", most)
    monkeypatch.setattr(conv, "TILE", most)
    monkeypatch.setattr(pool, "TILE", most)

    found = run(backend, NODES[name], values)

    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["conv_2d", "conv_2d_dw", "conv_3d", "pool_1d", "pool_2d"])
def test_threads_do_not_disturb_each_other(monkeypatch, device, name):
    lanes_seen = []

    def by_turns(team, steps):
        """All lanes at once, a step of each in turn: what they share is overwritten for sure."""
        lanes_seen.append(len(steps))
        for turn in itertools.zip_longest(*(s.args[0] for s in steps), fillvalue=lambda: None):
            for step in turn:
                step()

    values = drawn(NODES[name])
    with device.open(threads=1) as alone, device.open(threads=3) as backend:
        wanted = run(alone, NODES[name], values)
        monkeypatch.setattr(Team, "run", by_turns)
        for module in (conv, pool):
            monkeypatch.setattr(module, "PARALLEL", 1)
            monkeypatch.setattr(module, "TILE", 100)

        found = run(backend, NODES[name], values)

    assert set(lanes_seen) == {3}
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_convolution_is_a_product_with_the_rows_of_im2col(backend):
    rows = tp.im2col(FILTERS, IMAGES, to=tp.F32, stride=(1, 2), padding=(1, 0))
    columns = tp.reshape(rows, (-1, rows.shape[-1]))
    product = tp.mul_mat(tp.reshape(FILTERS, (5, 36)), columns)
    values = drawn(product)

    found = run(backend, product, values)

    wanted = run(backend, NODES["conv_2d"], values)
    by_pixel = wanted.transpose(0, 2, 3, 1).reshape(-1, 5)
    np.testing.assert_allclose(found, by_pixel, rtol=1e-4, atol=1e-5)


def test_transposed_convolution_is_a_product_that_col2im_sums_up(backend):
    # [c, o, k] as [o * k, c]: what each step of the signal says of the result, by channel.
    matrix = tp.cont(tp.transpose(tp.reshape(SIGNAL_FILTERS, (6, 35))))
    columns = tp.mul_mat(matrix, tp.cont(tp.transpose(SIGNAL)))
    summed = tp.col2im_1d(columns, channels=7, stride=3, padding=2)
    values = drawn(summed)

    found = run(backend, summed, values)

    wanted = run(backend, NODES["conv_transpose_1d"], values)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_gradient_of_im2col_is_its_transpose(backend):
    rows = tp.im2col(FILTERS, IMAGES, to=tp.F32, stride=(1, 2), padding=(1, 0), dilation=(1, 2))
    grad = leaf("grad", rows.shape, tp.F32)
    back = tp.im2col_back(
        grad, FILTERS, IMAGES.shape, stride=(1, 2), padding=(1, 0), dilation=(1, 2)
    )
    values = drawn(rows) | drawn(back)

    forth_product = np.vdot(
        run(backend, rows, {t: values[t] for t in (FILTERS, IMAGES)}), values[grad]
    )
    back_product = np.vdot(
        run(backend, back, {t: values[t] for t in (FILTERS, grad)}), values[IMAGES]
    )

    assert forth_product == pytest.approx(back_product, rel=1e-4)

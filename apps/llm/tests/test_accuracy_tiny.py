"""Logits of tiny random models of every architecture, against llama.cpp's F32 arithmetic."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import pytest

import tensorplug as tp
from tensorplug import Backend
from tensorplug_llm.testing import ModelTests, tiny_models

from .placements import FEW, PLACEMENTS


class OnDevices(ModelTests):
    """On streams of the devices that a test is for."""

    @pytest.fixture
    def streams(self, devices: Sequence[str]) -> Iterator[Sequence[Backend]]:
        with ExitStack() as opened:
            yield [opened.enter_context(tp.open(device)) for device in devices]


class TestPlacements(OnDevices):
    """On every kind of device here, and over several."""

    models = tiny_models.FIRST

    @pytest.fixture(params=PLACEMENTS, ids="+".join)
    def devices(self, request: pytest.FixtureRequest) -> Sequence[str]:
        return request.param

    @pytest.fixture(params=["auto", "mapped"])
    def options(self, request: pytest.FixtureRequest) -> Mapping[str, str]:
        return {"weights": request.param}


class TestArchitectures(OnDevices):
    """All others, in several sizes, on the cpu, then on one driver, then on both together."""

    models = tiny_models.OTHERS
    steps = 10

    @pytest.fixture(
        params=[
            FEW[0],
            *(pytest.param(names, marks=pytest.mark.long) for names in FEW[1:2]),
            *(pytest.param(names, marks=pytest.mark.slow) for names in FEW[2:]),
        ],
        ids="+".join,
    )
    def devices(self, request: pytest.FixtureRequest) -> Sequence[str]:
        return request.param

"""Logits of tiny random models of every architecture, against llama.cpp's F32 arithmetic."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import pytest

import tensorplug as tp
from tensorplug import Backend
from tensorplug_llm.testing import ModelTests

from .placements import PLACEMENTS


class TestPlacements(ModelTests):
    """On every kind of device here, and over several."""

    @pytest.fixture(params=PLACEMENTS, ids="+".join)
    def streams(self, request: pytest.FixtureRequest) -> Iterator[Sequence[Backend]]:
        with ExitStack() as opened:
            yield [opened.enter_context(tp.open(device)) for device in request.param]

    @pytest.fixture(params=["auto", "mapped"])
    def options(self, request: pytest.FixtureRequest) -> Mapping[str, str]:
        return {"weights": request.param}

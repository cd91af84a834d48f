"""`DeviceTests`: the whole conformance kit, for an author's own tests.

from tensorplug.testing.kit import DeviceTests

class TestAcme(DeviceTests):
    known_gaps = {"test_case[[]flash_attn_ext-*": "no attention kernel for f16 masks yet"}

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls):
        with AcmeDevice("acme:0") as device:
            yield device
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import pytest

from tensorplug.backend import Backend
from tensorplug.device import Device
from tensorplug.testing.suites.ops import OpTests
from tensorplug.testing.suites.random import RandomTests


class DeviceTests(OpTests, RandomTests):
    """Every contract of a device. Subclasses give the fixture `device`; abilities decide skips."""

    known_gaps: ClassVar[Mapping[str, str]] = {}
    """Tests that are known to fail: a shell pattern for `test_name[case]`, and the reason."""

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls) -> Iterator[Device]:
        """The device under test."""
        raise NotImplementedError(f"{cls.__name__}: give a fixture `device`")

    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, device: Device) -> Iterator[Backend]:
        """One stream of it for all cases."""
        with device.open() as backend:
            yield backend

    @pytest.fixture(scope="class")
    @classmethod
    def kit_seed(cls, request: pytest.FixtureRequest) -> int:
        """Base of all seeds: `--kit-seed`."""
        seed = request.config.getoption("kit_seed", 0)
        assert isinstance(seed, int)
        return seed

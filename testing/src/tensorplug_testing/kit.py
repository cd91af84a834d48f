"""`DeviceTests`: the whole conformance kit, for an author's own tests.

from tensorplug_testing.kit import DeviceTests

class TestAcme(DeviceTests):
    known_gaps = {"test_case[flash_attn_ext-*": "no attention kernel for f16 masks yet"}

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls):
        with AcmeDevice("acme:0") as device:
            yield device
"""

import sys
from collections.abc import Iterator, Mapping
from typing import ClassVar

import pytest

from tensorplug.device import Backend, Device

# pytest rewrites the assertions of these modules, so that a failure shows the compared values.
if "tensorplug_testing.suites" not in sys.modules:
    pytest.register_assert_rewrite("tensorplug_testing.suites")

from tensorplug_testing.suites.asynchronous import AsyncTests
from tensorplug_testing.suites.given_back import GivenBackTests
from tensorplug_testing.suites.graphs import GraphTests
from tensorplug_testing.suites.language import LanguageTests
from tensorplug_testing.suites.lifetime import LifetimeTests
from tensorplug_testing.suites.memory import MemoryTests
from tensorplug_testing.suites.ops import OpTests
from tensorplug_testing.suites.plans import PlanTests
from tensorplug_testing.suites.plugin import PluginTests
from tensorplug_testing.suites.random import RandomTests
from tensorplug_testing.suites.rows import RowIdTests
from tensorplug_testing.suites.settings import SettingsTests
from tensorplug_testing.suites.transfer import TransferTests
from tensorplug_testing.suites.weights import WeightTests


class DeviceTests(
    OpTests,
    RowIdTests,
    RandomTests,
    GraphTests,
    LanguageTests,
    PlanTests,
    WeightTests,
    MemoryTests,
    TransferTests,
    AsyncTests,
    LifetimeTests,
    SettingsTests,
    GivenBackTests,
    PluginTests,
):
    """Tests of every contract of a device. Subclasses define the fixture `device`.

    Tests of abilities that the device does not have are skipped.
    """

    known_gaps: ClassVar[Mapping[str, str]] = {}
    """Tests that are known to fail, and why: `test_name[case]`, in which `*` matches any text.

    The expectation is strict: a listed test that passes fails the run. `tensorplug test` and
    `certify` ignore this table.
    """

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls) -> Iterator[Device]:
        """The device under test."""
        raise NotImplementedError(f"{cls.__name__}: give a fixture `device`")

    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, device: Device) -> Iterator[Backend]:
        """One stream of the device, for all cases."""
        with device.open() as backend:
            yield backend

    @pytest.fixture(scope="class")
    @classmethod
    def kit_seed(cls, request: pytest.FixtureRequest) -> int:
        """The base of all seeds, from the option `--kit-seed`."""
        seed = request.config.getoption("tensorplug_kit_seed", 0)
        assert isinstance(seed, int)
        return seed

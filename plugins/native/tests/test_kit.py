"""The conformance kit at each instruction-set level."""

from collections.abc import Iterator

import pytest

from tensorplug_native.device import NativeDevice
from tensorplug_native.library import VARIABLE
from tensorplug_testing.kit import DeviceTests


class KitTests(DeviceTests):
    level: str

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls) -> Iterator[NativeDevice]:
        with pytest.MonkeyPatch.context() as patch, NativeDevice("cpu:0") as device:
            patch.setenv(VARIABLE, cls.level)
            yield device


@pytest.mark.long
class TestBaseline(KitTests):
    level = "baseline"


class TestBest(KitTests):
    level = "auto"

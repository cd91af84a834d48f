"""The whole conformance kit on the devices of every OpenCL driver that is installed here."""

from collections.abc import Iterator

import pytest

from tensorplug.device import Backend, Device
from tensorplug_opencl.device import OpenCLDevice
from tensorplug_testing.cases.case import Case
from tensorplug_testing.kit import DeviceTests


class TestOpenCL(DeviceTests):
    """Every contract of a device."""

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls, driver) -> Iterator[OpenCLDevice]:
        with OpenCLDevice("opencl:0", driver) as device:
            yield device

    @pytest.mark.long
    def test_plan_runs_again_and_where_it_is_bound_anew(
        self, case: Case, device: Device, backend: Backend, kit_seed: int
    ) -> None:
        super().test_plan_runs_again_and_where_it_is_bound_anew(case, device, backend, kit_seed)

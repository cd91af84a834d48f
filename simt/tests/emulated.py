"""What both languages' emulated kernels are tested for."""

import pytest

from tensorplug_emulator.suites.kernels import KernelTests, in_each_order


class SharedKernelTests(KernelTests):
    """The shared kernels, on the module's fixture `device`."""

    least = {"smoke": 440, "full": 8000}

    @pytest.mark.slow
    @in_each_order
    def test_kernels_compute_every_case_of_the_kit(self, device, order):
        assert self.problems(device, "full", order) == []

"""What both languages' emulated kernels are tested for."""

import pytest

from tensorplug_emulator import Order
from tensorplug_emulator.evidence import emulation_problems, supported
from tensorplug_testing.tiers import select

in_each_order = pytest.mark.parametrize("order", Order, ids=lambda order: order.name.lower())


class KitTests:
    """The cases of the kit on the module's fixture `device`."""

    @pytest.mark.parametrize(
        ("tier", "count"),
        [
            pytest.param("smoke", 440, marks=pytest.mark.long),
            pytest.param("full", 8000, marks=pytest.mark.slow),
        ],
    )
    @in_each_order
    def test_kernels_compute_the_cases_of_the_kit(self, device, order, tier, count):
        cases = supported(device, select(tier))

        assert len(cases) > count
        assert emulation_problems(device, cases, order) == []

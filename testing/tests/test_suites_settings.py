"""The settings suite passes on sound devices and catches those with a fault."""

from functools import partial

import pytest

from tensorplug_testing.null import NullBuffer, NullBufferType, NullDevice
from tensorplug_testing.suites.settings import SettingsTests


class TestSettings(SettingsTests):
    """Every test of the suite on every device of the folder."""


class Faulty(NullDevice):
    """A device whose buffers and streams have members replaced."""

    def __init__(self, of_buffer: dict, of_stream: dict, **options) -> None:
        buffer = type("FaultyBuffer", (NullBuffer,), of_buffer)
        self.buffer_type_class = type("FaultyType", (NullBufferType,), {"buffer_class": buffer})
        super().__init__(**options)
        self.backend_class = type("FaultyStream", (self.backend_class,), of_stream)


def take_any_usage(self, usage) -> None:
    self._usage = usage


FAULTS = {
    "stream that takes any setting": (
        partial(Faulty, {}, {"__setattr__": object.__setattr__}),
        "test_setting_of_a_stream_is_taken_or_refused_by_its_ability",
    ),
    "stream that hides its options": (
        partial(Faulty, {}, {"options": property(lambda self: {"more": 1}, lambda *_: None)}),
        "test_stream_says_every_option_that_it_was_opened_with",
    ),
    "buffer that takes any usage": (
        partial(
            Faulty,
            {
                "usage": property(
                    lambda self: self._usage, lambda self, u: vars(self).update(_usage=u)
                )
            },
            {},
        ),
        "test_usage_that_is_none_is_refused",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught(failures, fault: str) -> None:
    make_device, test = FAULTS[fault]

    assert failures(SettingsTests, make_device, test) == {test}

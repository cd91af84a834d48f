"""`SettingsTests`: attributes of streams and buffers that can be set, and refused settings."""

from typing import Any

import pytest

import tensorplug as tp
from tensorplug.device import (
    Device,
    SupportsAbort,
    SupportsConcurrency,
    SupportsProfiling,
    SupportsReference,
    SupportsThreads,
)
from tensorplug.device.abilities import has_ability
from tensorplug.errors import OptionError, Unsupported
from tensorplug_testing.suites.work import Rig, Suite

SETTINGS: dict[str, tuple[Any, Any]] = {
    "threads": (SupportsThreads, 1),
    "abort_callback": (SupportsAbort, None),
    "use_reference": (SupportsReference, False),
    "profile": (SupportsProfiling, False),
    "ahead": (SupportsConcurrency, 0),
}
"""Attributes of streams, with the ability that they belong to and a value."""


class SettingsTests(Suite):
    """A setting that would have no effect is refused."""

    @pytest.mark.parametrize("name", SETTINGS)
    def test_setting_of_a_stream_is_taken_or_refused_by_its_ability(
        self, work: Rig, device: Device, name: str
    ) -> None:
        stream = work.open()
        ability, value = SETTINGS[name]

        if has_ability(device.backend_class, ability):
            setattr(stream, name, value)
            assert getattr(stream, name) == value
            return
        with pytest.raises(Unsupported) as error:
            setattr(stream, name, value)

        assert not isinstance(stream, ability)
        assert str(error.value) == (
            f"{device.name}: {name} cannot be set: {type(stream).__name__} has no "
            f"{ability.__name__}; ask isinstance() first (a class that has it declares {name})"
        )

    def test_stream_says_every_option_that_it_was_opened_with(
        self, work: Rig, device: Device
    ) -> None:
        assert work.open().options == device.parse_options({})

    @pytest.mark.parametrize("usage", [1, "weights", None, True], ids=repr)
    def test_usage_that_is_none_is_refused(self, work: Rig, device: Device, usage: Any) -> None:
        buffer, known = work.alloc(64), "tensorplug.ANY, tensorplug.WEIGHTS, tensorplug.COMPUTE"
        what = f"usage={usage!r} is not a BufferUsage; give one of {known}"

        for kind in (device.buffer_type, device.host_buffer_type, *device.extra_buffer_types):
            if kind is not None:
                with pytest.raises(OptionError) as error:
                    kind.alloc(64, usage)
                assert str(error.value) == f"{kind.name}: {what}"
        with pytest.raises(OptionError) as error:
            work.open().place("w", [1.0], usage=usage)
        assert str(error.value) == f"{device.buffer_type.name}: {what}"
        with pytest.raises(OptionError) as error:
            buffer.usage = usage

        assert str(error.value) == f"{buffer!r}: {what}"
        assert buffer.usage is tp.ANY

"""Abilities decide skips, and the suites keep out of each other's way."""

import importlib
import pkgutil

import pytest

import tensorplug as tp
from tensorplug.device import Capabilities
from tensorplug_testing import suites
from tensorplug_testing.null import NullDevice
from tensorplug_testing.suites.abilities import ABILITIES, needs


class Probe:
    """Notes that it ran."""

    ran = False

    @needs("events", "async_copy")
    def test_both(self, device: tp.Device) -> None:
        self.ran = True


def test_every_ability_of_a_device_can_be_asked_for() -> None:
    assert set(ABILITIES) == set(Capabilities.__dataclass_fields__)


def test_test_runs_where_the_device_has_the_abilities() -> None:
    probe = Probe()

    probe.test_both(device=NullDevice(asynchronous=True))

    assert probe.ran


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"events": False}, "null:0 has no events"),
        ({"async_copy": False}, "null:0 has no asynchronous copies"),
        (
            {"events": False, "async_copy": False},
            "null:0 has no events and no asynchronous copies",
        ),
    ],
)
def test_test_is_skipped_with_the_reason_where_it_has_not(options, reason: str) -> None:
    probe, device = Probe(), NullDevice(asynchronous=True, **options)

    with pytest.raises(pytest.skip.Exception) as skipped:
        probe.test_both(device)

    assert str(skipped.value) == reason
    assert not probe.ran


def test_ability_that_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(
        ValueError, match="no ability is called 'speed'; choose from async_transfer"
    ):
        needs("speed")


def test_no_test_of_one_suite_hides_that_of_another() -> None:
    found: dict[str, str] = {}
    for module in pkgutil.iter_modules(suites.__path__, f"{suites.__name__}."):
        for name, kind in vars(importlib.import_module(module.name)).items():
            if isinstance(kind, type) and kind.__module__ == module.name:
                for test in (t for t in vars(kind) if t.startswith("test_")):
                    assert found.setdefault(test, name) == name, f"{test}: {name}, {found[test]}"

    assert len(found) > 100

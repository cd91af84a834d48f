"""What lowerings learn of devices whose limits are not those of the machine of the tests."""

from types import SimpleNamespace

import pytest

cl = pytest.importorskip("pyopencl")

from tensorplug_opencl.facts import (  # noqa: E402 - imports the driver's library
    ACTIVATIONS,
    POCL,
    facts_of,
)


def driver(
    items: int = 256, kind: int = cl.device_type.GPU, platform: str = POCL
) -> SimpleNamespace:
    """A driver's device whose groups have up to `items` items."""
    return SimpleNamespace(
        extensions="",
        max_work_group_size=items,
        local_mem_size=32 * 1024,
        version="OpenCL 1.2 x",
        type=kind,
        max_compute_units=4,
        platform=SimpleNamespace(name=platform),
    )


@pytest.mark.parametrize(("items", "largest"), [(1024, 256), (384, 256), (192, 128)])
def test_groups_are_powers_of_two_that_the_device_grants(items, largest):
    assert facts_of(driver(items)).max_group == largest


def test_a_device_with_small_groups_gets_the_kernels_of_processors():
    facts = facts_of(driver(12))

    assert (facts.wide, facts.row_group, facts.flat_group) == (True, 1, 8)


@pytest.mark.parametrize(
    ("platform", "kind", "processor", "rounds"),
    [
        (POCL, cl.device_type.CPU, "x86_64", True),
        (POCL, cl.device_type.CPU, "aarch64", False),
        (POCL, cl.device_type.GPU, "x86_64", False),
        ("Intel(R) OpenCL", cl.device_type.CPU, "x86_64", False),
    ],
)
def test_activations_are_rounded_where_that_is_faster(
    platform, kind, processor, rounds, monkeypatch
):
    monkeypatch.delenv(ACTIVATIONS, raising=False)
    monkeypatch.setattr("tensorplug_opencl.facts.machine", lambda: processor)

    assert facts_of(driver(kind=kind, platform=platform)).int8_activations is rounds


@pytest.mark.parametrize(("setting", "rounds"), [("f32", False), ("int8", True)])
def test_a_setting_says_whether_activations_are_rounded(setting, rounds, monkeypatch):
    monkeypatch.setenv(ACTIVATIONS, setting)

    assert facts_of(driver(kind=cl.device_type.CPU)).int8_activations is rounds

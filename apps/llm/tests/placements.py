"""Where the tests run whole models: on every kind of device here, and over several."""

from dataclasses import replace

import pytest

import tensorplug as tp

OPENCL = [d.name for d in tp.devices() if d.name.startswith("opencl:")]

FEW = [("cpu",), *((name,) for name in OPENCL[:1]), *((name, "cpu") for name in OPENCL[:1])]
"""Devices of one model, in the order of its layers."""

_MORE = [*((name,) for name in OPENCL[1:]), *(("cpu", *OPENCL) for _ in OPENCL[1:2])]

_SOON = [*FEW[:1], *(pytest.param(devices, marks=pytest.mark.long) for devices in FEW[1:])]

PLACEMENTS = [*_SOON, *(pytest.param(devices, marks=pytest.mark.long) for devices in _MORE)]
SLOW_PLACEMENTS = [*_SOON, *(pytest.param(devices, marks=pytest.mark.slow) for devices in _MORE)]
"""The same for models that take their time."""


def set_activations(patch: pytest.MonkeyPatch, wanted: str) -> None:
    """Let products round activations (`int8`) or not (`f32`), on every device that can."""
    patch.setenv("TENSORPLUG_NATIVE_ACTIVATIONS", wanted)
    patch.setenv("TENSORPLUG_OPENCL_ACTIVATIONS", wanted)  # for other processes
    for device in map(tp.device, OPENCL):  # whose facts were read when devices were listed
        facts = replace(device.facts, int8_activations=wanted == "int8")
        patch.setattr(device, "facts", facts)

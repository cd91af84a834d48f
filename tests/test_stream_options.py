"""Options of streams: every device that opens streams for another one hands all of them on."""

from contextlib import ExitStack

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import meta
from tensorplug.errors import OptionError
from tensorplug_testing.null import null_devices

VALUES = {
    "threads": [1, 2],
    "level": ["baseline"],
    "affinity": ["0"],
    "activations": ["int8", "f32"],
}
"""Values to give each option that a device of this machine declares."""

NAMES = sorted({device.name.partition(":")[0] for device in tp.devices()})
DEVICES = [*NAMES, "cpu@tensorplug-cpu"]


def options_of(spec):
    return [o.name for o in tp.device(spec).options]


CASES = [
    pytest.param(spec, name, value, id=f"{spec}?{name}={value}")
    for spec in DEVICES
    for name in options_of(spec)
    for value in VALUES[name]
]


@pytest.mark.parametrize(("spec", "name", "value"), CASES)
def test_meta_device_opens_streams_with_the_options_of_the_streams_it_is_made_of(spec, name, value):
    given = f"{spec}?{name}={value}"

    with ExitStack() as opened:
        streams = [opened.enter_context(tp.open(given)) for _ in range(2)]
        both = opened.enter_context(meta.device(streams))
        again = opened.enter_context(meta.device([opened.enter_context(both.open()), streams[0]]))
        stream = opened.enter_context(again.open())
        inner = [*stream.streams[0].streams, stream.streams[1]]

        assert [s.options[name] for s in inner] == [value] * 3
        assert {k: [s.options[k] for s in inner] for k in streams[0].options} == {
            k: [v] * 3 for k, v in streams[0].options.items()
        }


@pytest.mark.parametrize(("spec", "name", "value"), CASES)
def test_option_of_a_part_is_refused_by_name_in_the_string_of_a_joined_device(spec, name, value):
    with pytest.raises(OptionError) as error:
        tp.open(f"meta:{spec}+{spec}?{name}={value}")

    assert f"no option '{name}'" in str(error.value)


@pytest.mark.parametrize("spec", ["cpu", "cpu@tensorplug-cpu"])
def test_meta_device_computes_in_the_precision_that_its_streams_were_opened_with(spec):
    options = {"activations": "f32"} if "activations" in options_of(spec) else {}
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 512)).astype(np.float32)
    w = rng.integers(-127, 128, (64, 512)).astype(np.int8)
    scale = np.full((64, 16, 1), 0.01, np.float16)
    blocks = np.concatenate([scale.view(np.uint8), w.view(np.uint8).reshape(64, 16, 32)], axis=2)
    wanted = x.astype(np.float64) @ (float(scale[0, 0, 0]) * w.T)

    with ExitStack() as opened:
        streams = [opened.enter_context(tp.open(spec, **options)) for _ in range(2)]
        both = opened.enter_context(meta.device(streams, "rows"))
        stream = opened.enter_context(both.open())
        weights = stream.place("w", blocks.reshape(64, -1), usage=tp.WEIGHTS, dtype="q8_0")
        given = tp.input("x", x.shape, tp.F32)
        y = tp.mul_mat(weights, given)
        with tp.Scheduler([stream]) as scheduler, scheduler.schedule(y) as schedule:
            found = np.array(schedule.run({given: x})[y])

    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("name", ["threads", "use_reference"])
def test_meta_device_hands_on_what_was_set_on_a_stream_after_it_was_opened(name):
    with tp.open("cpu", threads=2) as given:
        setattr(given, name, 1)
        with meta.device([given]) as device, device.open() as stream:
            assert getattr(stream.streams[0], name) == 1


def test_meta_device_of_devices_opens_streams_by_their_defaults():
    with meta.device([*null_devices(1), tp.device("cpu")]) as device, device.open() as stream:
        default = tp.device("cpu").parse_options({})

        assert [dict(s.options) for s in stream.streams] == [{}, default]

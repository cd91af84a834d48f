"""A forked child does not touch the driver that its parent started, and says what to do."""

import os

import pytest

from tensorplug_testing.forked import error_in_child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

USES = {
    "wait": lambda stream: stream.synchronize(),
    "stream": lambda stream: stream.device.open(),
    "memory": lambda stream: stream.device.buffer_type.alloc(64),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_use_in_a_forked_child_raises_with_the_remedy(stream, use):
    said = error_in_child(lambda: use(stream))

    assert said.startswith("DeviceError: ")
    assert "start processes by spawn or forkserver" in said

"""Memory, streams, options, programs and features of the devices of SIMT backends.

The tests take the fixtures `device`, `stream` and, over a stand-in, its `machine`.
"""

import mmap
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import meta
from tensorplug.device import Buffer, DeviceError, OutOfMemory
from tensorplug_simt.device import SimtDevice
from tensorplug_testing.suites.events import ForeignEvent

DATA = np.arange(16, dtype=np.uint8)
PAGES = 1 << 14
"""A multiple of the size of a page on every system."""


class MemoryTests:
    """What a device says of its memory."""

    def test_memory_that_is_not_there_is_reported_with_both_sizes(
        self, device: SimtDevice, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as used:
            used.setattr(device, "_allocated", device.total - 100)

            with pytest.raises(OutOfMemory, match=f"{device.name}: 1000 bytes needed, 100 avail"):
                device.buffer_type.alloc(1000)

    def test_memory_in_use_is_not_free(self, device: SimtDevice) -> None:
        before = device.memory().free

        with device.buffer_type.alloc(1 << 20):
            assert device.memory().free == before - (1 << 20)

        assert device.memory().free == before


class StandInMemoryTests(MemoryTests):
    """Memory of a stand-in's machine, which others take too, and memory of the host."""

    exhausted: ClassVar[str]
    """What the driver says where it has no memory."""

    def test_memory_that_others_took_is_out_of_memory_too(
        self, device: SimtDevice, machine: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as others:
            others.setattr(machine.gpus[0], "allocated", device.total)

            with pytest.raises(OutOfMemory, match=f"{device.name}: 1000 bytes: {self.exhausted}"):
                device.buffer_type.alloc(1000)

    def test_memory_of_which_elements_cannot_be_loaded_is_not_imported(self, device: Any) -> None:
        data = np.frombuffer(mmap.mmap(-1, PAGES), np.uint8)[1:]

        with pytest.raises(tp.Unsupported, match=r"1 bytes past a multiple of 16.*place\(\) copie"):
            device.import_host(data)


class StreamTests:
    """Streams of a stand-in, which do nothing until something waits for them."""

    @pytest.fixture
    def filled(self, device: SimtDevice) -> Callable[[], Buffer]:
        """Makes buffers of 16 zero bytes."""

        def make() -> Buffer:
            buffer = device.buffer_type.alloc(16)
            buffer.fill(0)
            return buffer

        return make

    def keep_busy(self, stream: Any) -> object:
        """Queue work on a stream that would otherwise start the next work at once.

        The test holds what it returns until the stream was waited for.
        """
        return None

    def test_threads_may_wait_for_a_stream_that_another_has_closed(
        self, device: SimtDevice
    ) -> None:
        stream = device.open()
        stream.close()

        stream.drain()

        assert not stream.has_failed

    def test_streams_that_nobody_orders_see_old_bytes(
        self, device: SimtDevice, filled: Callable[[], Buffer]
    ) -> None:
        seen, _ = self.read_while_written(device, filled(), waits=False)

        assert not seen.any()

    def test_stream_that_waits_for_an_event_sees_what_came_before(
        self, device: SimtDevice, filled: Callable[[], Buffer]
    ) -> None:
        seen, event = self.read_while_written(device, filled(), waits=True)

        assert seen.tolist() == DATA.tolist()
        assert event.done

    def read_while_written(
        self, device: SimtDevice, buffer: Buffer, *, waits: bool
    ) -> tuple[np.ndarray[Any, Any], Any]:
        """What a stream reads while another one writes, and the event behind what was written."""
        seen = np.zeros(16, np.uint8)
        first: Any
        second: Any
        with device.open() as first, device.open() as second:
            keep = self.keep_busy(first), self.keep_busy(second)
            first.write_async(buffer, 0, DATA.data)
            event = first.record()
            if waits:
                second.wait(event)
            second.read_async(buffer, 0, seen.data)
            second.synchronize()
            del keep
            return seen, event

    def test_event_of_another_kind_cannot_be_waited_for(
        self, device: SimtDevice, stream: Any
    ) -> None:
        assert not stream.accepts(ForeignEvent())
        with pytest.raises(DeviceError, match=f"{device.name}: cannot wait for"):
            stream.wait(ForeignEvent())


class OptionTests:
    """Options of streams. The fixture `option` gives each of `names` with a value."""

    names: ClassVar[tuple[str, ...]]
    """Those that the device declares."""

    def test_each_option_is_named_here(self, device: SimtDevice) -> None:
        assert {option.name for option in device.options} == set(self.names)

    def test_meta_device_opens_streams_with_the_options_of_its_streams(
        self, device: SimtDevice, option: tuple[str, Any]
    ) -> None:
        name, value = option
        joined: Any
        with (
            device.open(**{name: value}) as given,
            meta.device([given]) as both,
            both.open() as joined,
        ):
            assert joined.streams[0].options == {**device.parse_options({}), name: value}


def doubled(stream: tp.Backend) -> list[float]:
    """Compute twice four ones."""
    x = tp.input("x", (4,), tp.F32)
    y = tp.scale(x, 2.0)
    with tp.Scheduler([stream]).schedule(y) as run:
        computed: list[float] = run.run({x: np.ones(4, np.float32)})[y].tolist()
    return computed


class ProgramTests:
    """How many programs are compiled.

    The fixture `folder` is an empty folder in which they are kept, `again` computes `doubled` on a
    new device, and `compilations` returns the number of texts that were compiled.
    """

    suffix: ClassVar[str]
    """The suffix of a file with a program."""

    def test_sizes_of_tensors_need_no_new_program(self, device: Any, stream: tp.Backend) -> None:
        counts = []
        for tokens in (1, 7, 33, 128):
            x = tp.input("x", (tokens, 64), tp.F32)
            with tp.Scheduler([stream]).schedule(tp.scale(x, scale=2.0) + x) as run:
                run.run({x: np.ones((tokens, 64), np.float32)})
            counts.append(device.programs.count)

        assert counts == [2, 2, 2, 2]

    def test_program_is_compiled_once_for_all_processes(
        self, folder: Path, again: Callable[[], list[float]], compilations: Callable[[], int]
    ) -> None:
        assert [again() for _ in range(3)] == [[2.0] * 4] * 3

        assert compilations() == 1
        assert [file.suffix for file in folder.iterdir()] == [self.suffix]


class FeatureTests:
    """What a plugin tells of versions and GPUs, on a stand-in's machine."""

    plugin: ClassVar[str]
    """The module with `tensorplug_features()`."""
    features: ClassVar[Mapping[str, str]]
    """What it tells."""

    def test_features_tell_versions_and_gpus(self, machine: Any) -> None:
        assert import_module(self.plugin).tensorplug_features() == self.features

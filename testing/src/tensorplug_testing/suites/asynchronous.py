"""`AsyncTests`: the ordering of queued work, with a test for each line of docs/async.md."""

import numpy as np

import tensorplug as tp
from tensorplug.device import (
    Array,
    Device,
    Place,
    SupportsAsyncCopy,
    SupportsAsyncTransfer,
    SupportsEvents,
    order_after,
)
from tensorplug.device.moving import queue_copy, queue_read, queue_write
from tensorplug_testing.null import NullDevice
from tensorplug_testing.suites.abilities import needs
from tensorplug_testing.suites.events import EventTests
from tensorplug_testing.suites.late_errors import LateErrorTests
from tensorplug_testing.suites.relay import STEPS, Relay
from tensorplug_testing.suites.work import UNTOUCHED, Planned, Rig, numbers


class AsyncTests(EventTests, LateErrorTests):
    """Streams, queued transfers, events, copies between streams, and errors of queued work."""

    # --- one stream ------------------------------------------------------------------------

    def test_stream_does_plans_in_the_order_of_their_runs(self, work: Rig) -> None:
        relay = Relay(work, [work.open()] * 3, self.elements)

        for seed in range(self.rounds):
            relay.start(seed)
            relay.run()
            relay.check(seed)

    def test_plans_that_feed_each_other_run_again_and_again(self, work: Rig) -> None:
        backend = work.open()
        ring = Relay(work, [backend] * 2, 256, ring=True)
        ring.start(0)

        for _ in range(4):
            ring.run()
        backend.synchronize()

        np.testing.assert_array_equal(ring.read(0), work.after(numbers(256), 8 * STEPS))

    def test_work_is_done_once_synchronize_returns(self, work: Rig) -> None:
        relay = Relay(work, [work.open()], self.elements)

        for seed in range(self.rounds):
            relay.start(seed)
            relay.run()
            relay.check(seed)

    def test_synchronize_of_an_idle_stream_returns(self, work: Rig) -> None:
        backend = work.open()

        for _ in range(3):
            backend.synchronize()

        assert not backend.closed

    def test_compute_waits_for_its_work(self, work: Rig) -> None:
        x = tp.input("x", (self.elements,), tp.F32)
        bound = work.bind(work.chain(x, STEPS))
        planned = Planned(work.keep(work.open().plan(bound)), bound)
        planned.write({x: numbers(self.elements)})

        planned.plan.backend.compute(bound)

        np.testing.assert_array_equal(
            planned.read(bound.outputs[0]), work.after(numbers(self.elements), STEPS)
        )

    def test_streams_do_not_disturb_each_other(self, work: Rig) -> None:
        relays = [Relay(work, [work.open()] * 2, self.elements) for _ in range(3)]

        for seed, relay in enumerate(relays):
            relay.start(seed)
        for relay in relays:
            relay.run()

        for seed, relay in reversed(list(enumerate(relays))):
            relay.check(seed)

    def test_drain_waits_for_all_streams(self, work: Rig, device: Device) -> None:
        relays = [Relay(work, [work.open()], self.elements) for _ in range(3)]
        for seed, relay in enumerate(relays):
            relay.start(seed)
            relay.run()

        device.drain()

        for seed, relay in enumerate(relays):
            np.testing.assert_array_equal(relay.read(), relay.wanted(seed))

    def test_closing_waits_for_queued_work(self, work: Rig) -> None:
        for close in (Relay.close_input, Relay.close_plan, Relay.close_stream):
            relay = Relay(work, [work.open()], self.elements)
            relay.start(1)
            relay.run()

            close(relay)

            np.testing.assert_array_equal(relay.read(), relay.wanted(1))

    # --- queued transfers ------------------------------------------------------------------

    def test_transfers_keep_their_place_among_the_work(self, work: Rig) -> None:
        backend = work.open()
        relay = Relay(work, [backend], self.elements)
        given = [numbers(self.elements, seed=seed) for seed in range(self.rounds)]
        seen = [np.zeros(self.elements, np.float32) for _ in given]
        relay.start(99)

        for data, out in zip(given, seen, strict=True):
            queue_write(backend, relay.place(0), data)
            relay.run()
            queue_read(backend, relay.place(-1), out)
        backend.synchronize()

        for data, out in zip(given, seen, strict=True):
            np.testing.assert_array_equal(out, work.after(data, STEPS))

    @needs("async_transfer")
    def test_queued_write_has_arrived_after_synchronize(self, work: Rig, device: Device) -> None:
        backend, buffer = work.open(), work.alloc(400)
        assert isinstance(backend, SupportsAsyncTransfer)
        data = np.arange(100, dtype=np.uint8)

        backend.write_async(buffer, 200, data.data)
        backend.synchronize()

        np.testing.assert_array_equal(buffer.read(200, 100), data)
        assert set(buffer.read(0, 200).tolist()) == {UNTOUCHED}
        assert set(buffer.read(300, 100).tolist()) == {UNTOUCHED}

    @needs("async_transfer")
    def test_queued_read_has_arrived_after_synchronize(self, work: Rig, device: Device) -> None:
        backend, buffer = work.open(), work.alloc(400)
        assert isinstance(backend, SupportsAsyncTransfer)
        out = np.zeros(12, np.uint8)

        backend.read_async(buffer, 100, out[1:11].data)
        backend.synchronize()

        assert out.tolist() == [0, *[UNTOUCHED] * 10, 0]

    @needs("async_transfer")
    def test_host_memory_is_the_callers_again_after_synchronize(
        self, work: Rig, device: Device
    ) -> None:
        backend, buffer = work.open(), work.alloc(1000)
        assert isinstance(backend, SupportsAsyncTransfer)
        given, taken = np.full(1000, 7, np.uint8), np.zeros(1000, np.uint8)
        backend.write_async(buffer, 0, given.data)
        backend.read_async(buffer, 0, taken.data)
        backend.synchronize()

        given[...] = 8
        taken[...] = 9
        buffer.write(0, b"\x06")
        backend.synchronize()

        assert buffer.read(0, 1000).tolist() == [6] + [7] * 999
        assert set(taken.tolist()) == {9}

    @needs("events", "async_transfer")
    def test_host_memory_is_the_callers_again_once_an_event_behind_it_is_reached(
        self, work: Rig, device: Device
    ) -> None:
        relay = Relay(work, [work.open()], self.elements)
        (stream,) = relay.streams
        assert isinstance(stream, SupportsEvents)

        for seed in range(self.rounds):
            given, taken = numbers(self.elements, seed=seed), np.zeros(self.elements, np.float32)
            relay.start(99)
            queue_write(stream, relay.place(0), given)
            relay.run()
            queue_read(stream, relay.place(-1), taken)
            event = stream.record()
            relay.run()
            event.synchronize()
            given[...] = 0
            np.testing.assert_array_equal(taken, relay.wanted(seed))
            relay.check(seed)

    @needs("async_transfer")
    def test_nothing_is_transferred_in_order_too(self, work: Rig, device: Device) -> None:
        backend, buffer = work.open(), work.alloc(64)
        assert isinstance(backend, SupportsAsyncTransfer)

        backend.write_async(buffer, 64, memoryview(b""))
        backend.read_async(buffer, 0, memoryview(bytearray()))
        backend.synchronize()

        assert set(buffer.read(0, 64).tolist()) == {UNTOUCHED}

    # --- copies between streams ------------------------------------------------------------

    def test_copy_starts_after_the_source_and_before_the_target(self, work: Rig) -> None:
        first, second = (Relay(work, [work.open()], self.elements) for _ in range(2))

        for seed in range(self.rounds):
            first.start(seed)
            second.start(99)
            first.run()
            _copy(first, second)
            second.run()
            second.streams[0].synchronize()
            wanted = work.after(first.wanted(seed), STEPS)
            np.testing.assert_array_equal(second.read(), wanted)

    def test_copy_leaves_alone_what_the_target_still_reads(self, work: Rig) -> None:
        first, second = (Relay(work, [work.open()], self.elements) for _ in range(2))

        for seed in range(self.rounds):
            first.start(seed)
            second.start(99)
            second.run()
            _copy(first, second)
            second.streams[0].synchronize()
            np.testing.assert_array_equal(second.read(), second.wanted(99))

    @needs("async_copy")
    def test_copy_between_streams_of_the_device_is_queued(self, work: Rig, device: Device) -> None:
        source, target = work.open(), work.open()
        assert isinstance(target, SupportsAsyncCopy)
        a, b = work.alloc(256), work.alloc(256)
        a.fill(1)

        assert target.copy_async(source, Place(a, 16), Place(b, 32), 64) is True
        target.synchronize()

        assert b.read(0, 256).tolist() == [UNTOUCHED] * 32 + [1] * 64 + [UNTOUCHED] * 160

    @needs("async_copy")
    def test_copy_to_its_own_stream_keeps_the_order(self, work: Rig, device: Device) -> None:
        backend, buffer = work.open(), work.alloc(200)
        assert isinstance(backend, SupportsAsyncCopy)
        data, seen = np.arange(100, dtype=np.uint8), np.zeros(100, np.uint8)

        queue_write(backend, Place(buffer, 0), data)
        copied = backend.copy_async(backend, Place(buffer, 0), Place(buffer, 100), 100)
        queue_read(backend, Place(buffer, 100), seen)
        backend.synchronize()

        assert copied
        np.testing.assert_array_equal(seen, data)

    # --- copies to and from other devices --------------------------------------------------

    def test_copy_from_host_memory_keeps_its_place_among_the_work(self, work: Rig) -> None:
        relay = Relay(work, [work.open()], self.elements)
        (stream,), size = relay.streams, 4 * self.elements
        seen = np.zeros(self.elements, np.float32)
        with NullDevice("outside:0", host=True) as outside, outside.open() as other:
            memory = outside.buffer_type.alloc(size)

            for seed in range(self.rounds):
                relay.start(99)
                memory.write(0, numbers(self.elements, seed=seed))
                relay.run()
                queue_read(stream, relay.place(-1), seen)
                queue_copy(other, stream, Place(memory, 0), relay.place(0), size)
                relay.run()
                order_after(stream, other)
                memory.fill(UNTOUCHED)
                relay.check(seed)
                np.testing.assert_array_equal(seen, relay.wanted(99))

    def test_copy_to_host_memory_is_there_for_who_computes_in_it(self, work: Rig) -> None:
        relay, size = Relay(work, [work.open()], self.elements), 4 * self.elements
        with NullDevice("outside:0", host=True) as outside, outside.open() as other:
            memory = outside.buffer_type.alloc(size)

            for seed in range(self.rounds):
                relay.start(seed)
                relay.run()
                queue_copy(relay.streams[0], other, relay.place(-1), Place(memory, 0), size)
                other.synchronize()
                found = memory.host()[:size].view(np.float32)
                np.testing.assert_array_equal(found, relay.wanted(seed))

    def test_copies_through_the_host_keep_their_place_among_the_work(self, work: Rig) -> None:
        relay = Relay(work, [work.open()], self.elements)
        (stream,), size = relay.streams, 4 * self.elements
        between: list[Array] = []
        with NullDevice("outside:0", asynchronous=True) as outside, outside.open() as other:
            memory = Place(outside.buffer_type.alloc(size), 0)

            def staging(size: int) -> Array:
                between.append(np.empty(size, np.uint8))
                return between[-1]

            for seed in range(self.rounds):
                seen = np.zeros(self.elements, np.float32)
                relay.start(99)
                queue_write(other, memory, numbers(self.elements, seed=seed))
                queue_copy(other, stream, memory, relay.place(0), size, staging)
                relay.run()
                queue_copy(stream, other, relay.place(-1), memory, size, staging)
                queue_read(other, memory, seen)
                other.synchronize()
                relay.check(seed)
                np.testing.assert_array_equal(seen, relay.wanted(seed))

    # --- order_after -----------------------------------------------------------------------

    def test_order_after_orders_two_streams(self, work: Rig) -> None:
        relay = Relay(work, [work.open(), work.open()], self.elements)

        for seed in range(self.rounds):
            relay.start(seed)
            relay.run(order_after)
            relay.check(seed)

    def test_order_after_both_ways_lets_streams_take_turns(self, work: Rig) -> None:
        first, second = work.open(), work.open()
        ring = Relay(work, [first, second], self.elements, ring=True)
        ring.start(0)

        for _ in range(4):
            ring.run(order_after)
            order_after(second, first)
        first.synchronize()

        np.testing.assert_array_equal(ring.read(0), work.after(numbers(self.elements), 8 * STEPS))

    def test_order_after_protects_what_another_stream_still_copies(self, work: Rig) -> None:
        first, second = work.open(), work.open()
        source, target = work.alloc(4 * self.elements), work.alloc(4 * self.elements)
        seen = [np.zeros(self.elements, np.float32) for _ in range(self.rounds)]
        given = [numbers(self.elements, seed=seed) for seed in range(self.rounds)]

        for data, out in zip(given, seen, strict=True):
            queue_write(first, Place(source, 0), data)
            queue_copy(first, second, Place(source, 0), Place(target, 0), 4 * self.elements)
            queue_read(second, Place(target, 0), out)
            order_after(second, first)
        second.synchronize()

        for data, out in zip(given, seen, strict=True):
            np.testing.assert_array_equal(out, data)

    def test_order_after_itself_changes_nothing(self, work: Rig) -> None:
        relay = Relay(work, [work.open()], self.elements)
        relay.start(0)

        order_after(relay.streams[0], relay.streams[0])
        relay.run()

        relay.check(0)


def _copy(source: Relay, target: Relay) -> None:
    """Queue a copy from the end of one relay to the start of another."""
    queue_copy(
        source.streams[-1],
        target.streams[0],
        source.place(-1),
        target.place(0),
        4 * source.elements,
    )

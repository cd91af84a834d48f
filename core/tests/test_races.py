"""What happens before what, across the streams of devices and the host."""

from tensorplug.device.ranges import Host
from tensorplug.inspect.races import Clocks
from tensorplug_testing.null import NullDevice


def test_orders_pass_from_stream_to_stream(null: NullDevice) -> None:
    a, b, c = (null.open() for _ in range(3))
    clocks = Clocks()
    done = clocks.queue(a)
    clocks.order(a, b)
    clocks.order(b, c)

    assert clocks.of(c)[a] == done


def test_work_queued_after_the_order_is_not_covered_by_it(null: NullDevice) -> None:
    a, b = null.open(), null.open()
    clocks = Clocks()
    clocks.queue(a)
    clocks.order(a, b)
    later = clocks.queue(a)

    assert clocks.of(b)[a] < later


def test_what_the_host_has_waited_for_is_before_all_it_queues(null: NullDevice) -> None:
    a, b = null.open(), null.open()
    clocks = Clocks()
    done = clocks.queue(a)
    clocks.reach(clocks.mark(a))
    clocks.queue(b)

    assert clocks.of(b)[a] == done
    assert clocks.of(Host.THREAD)[a] == done

"""The lifetime suite passes on sound devices and catches those with a fault."""

import pytest

from tensorplug.device.plan import NodePlan
from tensorplug.errors import TensorplugError
from tensorplug_testing.null import NullBuffer, NullBufferType, NullDevice
from tensorplug_testing.suites.lifetime import LifetimeTests


class TestLifetime(LifetimeTests):
    """Every test of the suite on every device of the folder."""

    graphs = 200

    @pytest.fixture
    def spare_device(self, device_maker):
        with device_maker() as made:
            yield made


# --- planted faults ----------------------------------------------------------------------------


def device_with(
    *,
    buffer: dict | None = None,
    plan: dict | None = None,
    stream: dict | None = None,
    device: dict | None = None,
    **options,
):
    """Makes devices whose parts have members replaced."""
    of_buffer = type("FaultyBuffer", (NullBuffer,), buffer or {})
    of_plan = type("FaultyPlan", (NodePlan,), plan or {})
    kind = type("FaultyType", (NullBufferType,), {"buffer_class": of_buffer})
    members = {"buffer_type_class": kind, **(device or {})}

    def make() -> NullDevice:
        made = type("Faulty", (NullDevice,), members)("faulty:0", logs=False, **options)
        base = made.backend_class

        def planned(self, bound):
            self._check_support(bound)
            return of_plan(self, bound)

        made.backend_class = type("FaultyStream", (base,), {"_plan": planned, **(stream or {})})
        return made

    return make


def nothing(self, *_) -> None:
    """Do nothing."""


def keep_memory(self) -> None:
    """Give the buffer back, but not its bytes."""
    self._memory[...] = 0xFF
    self._device.live_buffers -= 1


def complain(self) -> None:
    raise TensorplugError("no caller receives what a finalizer raises")


KEPT = []


def keep_graph(self) -> None:
    """A cache by graph that is never emptied."""
    KEPT.append(self.bound)
    NodePlan._run(self)


def keep_plan(self) -> None:
    """A table of plans that is never emptied."""
    KEPT.append(self)
    NodePlan._run(self)


def keep_backend(self) -> None:
    """The driver's object for a stream is never given back."""


def lock_up(self) -> None:
    """Closing one stream ends the device."""
    self.device.lose()


def clear_device(self) -> None:
    """Closing one buffer clears all."""
    for child in self._device.children:
        if isinstance(child, NullBuffer):
            child._memory[...] = 0
    NullBuffer._close(self)


NO_CHILDREN = {"children": property(lambda self: [])}
NO_CHECK = {"check_open": nothing}

FAULTS = {
    "stream that closes without a look at its plans": (
        device_with(stream=NO_CHILDREN),
        "test_stream_with_open_plans_refuses_to_close_and_names_them",
    ),
    "device that closes without a look at its streams": (
        device_with(device=NO_CHILDREN),
        "test_device_with_open_streams_refuses_to_close",
    ),
    "stream that leaves its plans open": (
        device_with(stream=NO_CHILDREN),
        "test_force_closes_plans_with_their_stream",
    ),
    "closed buffer that can be used": (
        device_with(buffer=NO_CHECK),
        "test_closed_buffer_refuses_to_be_used",
    ),
    "closed buffer that can be seen": (
        device_with(buffer={"host": lambda self: self._memory}, host=True),
        "test_closed_buffer_refuses_to_be_seen",
    ),
    "closed plan that can be used": (
        device_with(plan=NO_CHECK),
        "test_closed_plan_refuses_to_be_used",
    ),
    "closed stream that can be used": (
        device_with(stream=NO_CHECK),
        "test_closed_stream_refuses_to_be_used",
    ),
    "stream whose end is the device's": (
        device_with(stream={"_close": lock_up}),
        "test_other_things_go_on_after_one_is_closed",
    ),
    "buffer that takes others along": (
        device_with(buffer={"_close": clear_device}),
        "test_other_things_go_on_after_one_is_closed",
    ),
    "memory given back before the work": (
        device_with(stream={"_synchronize": nothing}, asynchronous=True),
        "test_memory_dropped_while_work_uses_it_is_given_back_after_that_work",
    ),
    "finalizer that raises": (
        device_with(buffer={"__del__": complain}),
        "test_what_is_dropped_is_given_back_in_any_order",
    ),
    "plans that are kept": (
        device_with(plan={"_run": keep_plan}),
        "test_garbage_in_a_cycle_is_given_back",
    ),
    "buffers that are never finalized": (
        device_with(buffer={"__del__": nothing}),
        "test_dropped_graphs_leave_nothing_behind",
    ),
    "memory that is not given back": (
        device_with(buffer={"_close": keep_memory}),
        "test_buffers_leave_nothing_behind",
    ),
    "graphs that are kept": (
        device_with(plan={"_run": keep_graph}),
        "test_graphs_leave_nothing_behind",
    ),
    "streams that are kept": (
        device_with(stream={"_close": keep_backend}),
        "test_streams_leave_nothing_behind",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught(failures, fault: str) -> None:
    make_device, test = FAULTS[fault]

    assert failures(LifetimeTests, make_device, test) == {test}
    KEPT.clear()

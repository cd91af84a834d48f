"""`PlanTests`: plans that run again, with other memory and inputs, and on empty tensors."""

import gc
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import (
    Backend,
    Buffer,
    Device,
    Place,
    Plan,
    SupportsThreads,
    Tensor,
    transfer,
)
from tensorplug_testing.suites.abilities import needs
from tensorplug_testing.suites.work import UNTOUCHED, Rig, Suite, numbers

SHAPES = [(1,), (7,), (64,), (3, 5), (2, 3, 4), (2, 1, 3, 5), (1, 1, 1, 1), (1000,), ()]


class PlanTests(Suite):
    """Plans: first and repeated runs, rebinding, unusual graphs, reuse by schedules."""

    # --- running ---------------------------------------------------------------------------

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_plan_computes_tensors_of_any_shape(self, work: Rig, shape: tuple[int, ...]) -> None:
        x = tp.input("x", shape, tp.F32)

        (result,) = work.plan(work.chain(x, 2)).compute({x: numbers(*shape)})

        np.testing.assert_array_equal(result, work.after(numbers(*shape), 2))

    def test_plan_that_runs_again_gives_the_same(self, work: Rig) -> None:
        x = tp.input("x", (100,), tp.F32)
        planned = work.plan(work.chain(x, 5))
        first = planned.compute({x: numbers(100)})[0]

        for _ in range(20):
            np.testing.assert_array_equal(planned.compute()[0], first)

    def test_plan_sees_inputs_that_changed(self, work: Rig) -> None:
        x = tp.input("x", (100,), tp.F32)
        planned = work.plan(work.chain(x, 3))

        for seed in range(10):
            (result,) = planned.compute({x: numbers(100, seed=seed)})
            np.testing.assert_array_equal(result, work.after(numbers(100, seed=seed), 3))

    def test_plan_sees_persistent_tensors_that_changed(self, work: Rig) -> None:
        w = work.place(numbers(100))
        planned = work.plan(work.chain(w))
        planned.compute()

        transfer.write(w, numbers(100, seed=1))

        np.testing.assert_array_equal(planned.compute()[0], work.after(numbers(100, seed=1)))

    def test_plan_leaves_inputs_and_its_surroundings_alone(self, work: Rig) -> None:
        x = tp.input("x", (25,), tp.F32)
        y = work.chain(x)
        source, result = work.alloc(512), work.alloc(512)
        planned = work.plan(y, places={x: Place(source, 128), y: Place(result, 256)})

        planned.compute({x: numbers(25)})

        np.testing.assert_array_equal(source.read(128, 100).view(np.float32), numbers(25))
        assert _untouched(source, 128, 100)
        assert _untouched(result, 256, 100)

    def test_angles_follow_positions_that_the_graph_itself_changes(self, work: Rig) -> None:
        x, at = tp.input("x", (4, 2, 8), tp.F32), tp.input("at", (4,), tp.I32)
        zero, data = tp.input("zero", (4,), tp.I32), numbers(4, 2, 8)
        before = tp.rope(x, at, dims=8)
        written = tp.cpy(zero, at)
        after = tp.rope(x, at, dims=8)
        planned = work.plan(tp.Graph([before, after], effects=[written]))

        turned, left = planned.compute(
            {x: data, at: np.arange(4, dtype=np.int32), zero: np.zeros(4, np.int32)}
        )

        assert not np.allclose(turned, data, atol=1e-3)
        np.testing.assert_allclose(left, data, rtol=1e-3, atol=1e-3)

    def test_plan_runs_many_times_before_anybody_waits(self, work: Rig) -> None:
        x = work.place(numbers(100))
        planned = work.plan(work.chain(x, 2))

        for _ in range(50):
            planned.plan.run()
        planned.plan.backend.synchronize()

        wanted = work.after(numbers(100), 2)
        np.testing.assert_array_equal(planned.read(planned.bound.outputs[0]), wanted)

    def test_two_plans_of_one_graph_work_apart(self, work: Rig) -> None:
        x = tp.input("x", (100,), tp.F32)
        y, backend = work.chain(x, 2), work.open()
        plans = [work.plan(y, backend) for _ in range(2)]
        for seed, planned in enumerate(plans):
            planned.write({x: numbers(100, seed=seed)})

        for planned in plans:
            planned.plan.run()
        backend.synchronize()

        for seed, planned in enumerate(plans):
            wanted = work.after(numbers(100, seed=seed), 2)
            np.testing.assert_array_equal(planned.read(y), wanted)

    def test_plans_on_two_streams_work_apart(self, work: Rig) -> None:
        x = tp.input("x", (100,), tp.F32)
        y = work.chain(x, 2)
        plans = [work.plan(y) for _ in range(2)]

        results = [p.compute({x: numbers(100, seed=i)})[0] for i, p in enumerate(plans)]

        for seed, result in enumerate(results):
            np.testing.assert_array_equal(result, work.after(numbers(100, seed=seed), 2))

    @needs("threads")
    @pytest.mark.parametrize("threads", [1, 2, 5])
    def test_number_of_threads_does_not_change_results(
        self, work: Rig, device: Device, threads: int
    ) -> None:
        backend = work.open()
        assert isinstance(backend, SupportsThreads)
        x = tp.input("x", (50, 1000), tp.F32)

        backend.threads = threads
        (result,) = work.plan(work.chain(x, 2), backend).compute({x: numbers(50, 1000)})

        assert backend.threads == threads
        np.testing.assert_array_equal(result, work.after(numbers(50, 1000), 2))

    # --- rebinding -------------------------------------------------------------------------

    def test_plan_takes_other_memory(self, work: Rig) -> None:
        x = tp.input("x", (100,), tp.F32)
        y = work.chain(x, 3)
        planned, other = work.plan(y), work.bind(y)
        before = planned.compute({x: numbers(100)})[0]
        transfer.write(x, numbers(100, seed=1), other.bindings)

        planned.plan.rebind(other)
        planned.plan.run()
        planned.plan.backend.synchronize()

        wanted = work.after(numbers(100, seed=1), 3)
        np.testing.assert_array_equal(transfer.read(y, other.bindings), wanted)
        np.testing.assert_array_equal(planned.read(y), before)

    def test_plan_goes_back_and_forth_between_memories(self, work: Rig) -> None:
        x = tp.input("x", (100,), tp.F32)
        y = work.chain(x, 3)
        planned = work.plan(y)
        places = [planned.bound, work.bind(y), work.bind(y)]

        for seed in range(9):
            bound = places[seed % 3]
            transfer.write(x, numbers(100, seed=seed), bound.bindings)
            planned.plan.rebind(bound)
            planned.plan.run()
            planned.plan.backend.synchronize()
            wanted = work.after(numbers(100, seed=seed), 3)
            np.testing.assert_array_equal(transfer.read(y, bound.bindings), wanted)

    def test_plan_takes_another_graph_of_the_same_structure(self, work: Rig) -> None:
        x, x2 = (tp.input("x", (100,), tp.F32) for _ in range(2))
        y, y2 = work.chain(x, 3), work.chain(x2, 3)
        planned, other = work.plan(y), work.bind(y2)
        planned.compute({x: numbers(100)})
        transfer.write(x2, numbers(100, seed=1), other.bindings)

        planned.plan.rebind(other)
        planned.plan.run()
        planned.plan.backend.synchronize()

        wanted = work.after(numbers(100, seed=1), 3)
        np.testing.assert_array_equal(transfer.read(y2, other.bindings), wanted)

    def test_plan_refuses_a_graph_of_another_structure(self, work: Rig) -> None:
        x = tp.input("x", (100,), tp.F32)
        planned, other = work.plan(work.chain(x, 2)), work.bind(work.chain(x, 3))

        with pytest.raises(tp.GraphError) as error:
            planned.plan.rebind(other)

        assert str(error.value) == (
            f"{planned.plan!r}: cannot run {other!r}, which has another structure; plan it"
        )
        np.testing.assert_array_equal(
            planned.compute({x: numbers(100)})[0], work.after(numbers(100), 2)
        )

    @pytest.mark.usefixtures("quick_collection")
    def test_plan_lets_go_of_memory_it_was_bound_to(self, work: Rig) -> None:
        x = tp.input("x", (100,), tp.F32)
        y, backend = work.chain(x, 2), work.open()
        old, new = _bind_loosely(work.device, y), work.bind(y)
        plan = work.keep(backend.plan(old))
        buffers = [weakref.ref(old.bindings.where(t).buffer) for t in (x, y)]
        plan.run()
        backend.synchronize()

        plan.rebind(new)
        del old
        gc.collect()

        assert [buffer() for buffer in buffers] == [None, None], "the plan holds old memory"

    @pytest.mark.usefixtures("quick_collection")
    def test_closed_plan_lets_go_of_its_memory(self, work: Rig) -> None:
        x = tp.input("x", (100,), tp.F32)
        y, backend = work.chain(x, 2), work.open()
        bound = _bind_loosely(work.device, y)
        buffers = [weakref.ref(bound.bindings.where(t).buffer) for t in (x, y)]
        plan = backend.plan(bound)
        plan.run()

        plan.close()
        del plan, bound
        gc.collect()

        assert [buffer() for buffer in buffers] == [None, None], "the stream holds a closed plan"

    # --- graphs of odd forms ---------------------------------------------------------------

    def test_plan_of_views_alone_has_nothing_to_do(self, work: Rig) -> None:
        x = work.place(numbers(4, 6))
        planned = work.plan([x[1:3], x.T, x.reshape(24)])

        rows, turned, flat = planned.compute()

        np.testing.assert_array_equal(rows, numbers(4, 6)[1:3])
        np.testing.assert_array_equal(turned, numbers(4, 6).T)
        np.testing.assert_array_equal(flat, numbers(4, 6).reshape(24))

    def test_plan_of_no_nodes_runs(self, work: Rig) -> None:
        x = tp.input("x", (4,), tp.F32)
        nothing = tp.Part([], outputs=[x])

        planned = work.plan(nothing)
        planned.plan.run()
        planned.plan.backend.synchronize()

        assert nothing.nodes == ()

    @pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (2, 0, 3)], ids=str)
    def test_plan_of_empty_tensors_runs(self, work: Rig, shape: tuple[int, ...]) -> None:
        x = tp.input("x", shape, tp.F32)

        (result,) = work.plan(work.chain(x, 2)).compute({x: numbers(*shape)})

        assert result.shape == shape

    def test_plan_reads_sources_at_an_offset(self, work: Rig) -> None:
        x = tp.input("x", (6, 8), tp.F32)

        (result,) = work.plan(work.chain(x[2:5])).compute({x: numbers(6, 8)})

        np.testing.assert_array_equal(result, work.after(numbers(6, 8)[2:5]))

    def test_plan_reads_views_of_its_own_results(self, work: Rig) -> None:
        x = tp.input("x", (6, 8), tp.F32)
        inner = work.chain(x)

        (result,) = work.plan(work.chain(inner[3:].reshape(24))).compute({x: numbers(6, 8)})

        np.testing.assert_array_equal(result, work.after(numbers(6, 8)[3:].reshape(24), 2))

    def test_plan_writes_over_its_source(self, work: Rig, device: Device) -> None:
        x = work.place(numbers(16))
        node = _in_place(work, device, x)
        planned = work.plan(node)

        for _ in range(3):
            planned.plan.run()
        planned.plan.backend.synchronize()

        np.testing.assert_array_equal(transfer.read(x), work.after(numbers(16), 3))

    def test_plan_writes_over_a_part_of_its_source(self, work: Rig, device: Device) -> None:
        x = work.place(numbers(4, 8))
        wanted = numbers(4, 8)
        wanted[1:3] = work.after(wanted[1:3])

        work.plan(_in_place(work, device, x[1:3])).compute()

        np.testing.assert_array_equal(transfer.read(x), wanted)

    def test_plan_of_a_long_chain_computes_all_of_it(self, work: Rig) -> None:
        x = tp.input("x", (4,), tp.F32)

        (result,) = work.plan(work.chain(x, 100)).compute({x: numbers(4)})

        np.testing.assert_array_equal(result, work.after(numbers(4), 100))

    def test_plan_of_many_outputs_computes_all_of_them(self, work: Rig) -> None:
        x = tp.input("x", (8,), tp.F32)
        outputs = [work.chain(x, n) for n in range(1, 9)]

        results = work.plan(outputs).compute({x: numbers(8)})

        for n, result in enumerate(results, start=1):
            np.testing.assert_array_equal(result, work.after(numbers(8), n))

    # --- refusals --------------------------------------------------------------------------

    def test_op_that_nobody_knows_is_refused_with_a_reason(self, work: Rig, device: Device) -> None:
        node = _unknown()

        refusal = device.refuses(node)

        assert isinstance(refusal, tp.Refusal), "return Refusal(reason)"
        assert refusal.reason.startswith(f"{device.name}: ")
        assert len(refusal.reason) > len(f"{device.name}: ")

    def test_planning_what_the_device_refuses_says_why(self, work: Rig, device: Device) -> None:
        node = _unknown()
        backend, bound = work.open(), work.bind(node)

        with pytest.raises(tp.Unsupported) as error:
            work.keep(backend.plan(bound))

        assert str(error.value), "the error says nothing; name the op"

    # --- schedules -------------------------------------------------------------------------

    def test_schedules_of_one_structure_share_a_plan(
        self, work: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backend = work.open()
        planned = _count_plans(backend, monkeypatch)
        scheduler = work.keep(tp.Scheduler([backend]))

        for seed in range(5):
            x = tp.input("x", (100,), tp.F32)
            y = work.chain(x, 3)
            with scheduler.schedule(y) as schedule:
                result = schedule.run({x: numbers(100, seed=seed)})[y]
            np.testing.assert_array_equal(result, work.after(numbers(100, seed=seed), 3))

        assert len(planned) == 1

    def test_schedules_take_turns(self, work: Rig) -> None:
        scheduler = work.keep(tp.Scheduler([work.open()]))
        inputs = [tp.input("x", (n,), tp.F32) for n in (10, 1000)]
        outputs = [work.chain(x, 3) for x in inputs]
        schedules = [scheduler.schedule(y) for y in outputs]

        for seed in range(6):
            i = seed % 2
            data = numbers(inputs[i].size, seed=seed)
            result = schedules[i].run({inputs[i]: data})[outputs[i]]
            np.testing.assert_array_equal(result, work.after(data, 3))

    def test_schedule_survives_that_its_memory_grows(self, work: Rig) -> None:
        scheduler = work.keep(tp.Scheduler([work.open()]))
        x, larger = tp.input("x", (10,), tp.F32), tp.input("x", (5000,), tp.F32)
        y = work.chain(x, 4)
        schedule = scheduler.schedule(y)
        schedule.run({x: numbers(10)})

        scheduler.schedule(work.chain(larger, 4)).run({larger: numbers(5000)})
        result = schedule.run({x: numbers(10, seed=1)})[y]

        np.testing.assert_array_equal(result, work.after(numbers(10, seed=1), 4))

    def test_schedule_keeps_inputs_that_are_not_given_again(self, work: Rig) -> None:
        scheduler = work.keep(tp.Scheduler([work.open()]))
        x = tp.input("x", (10,), tp.F32)
        y = work.chain(x, 4)
        schedule = scheduler.schedule(y)
        schedule.run({x: numbers(10)})

        for _ in range(3):
            np.testing.assert_array_equal(schedule.run()[y], work.after(numbers(10), 4))


def _untouched(buffer: Buffer, start: int, size: int) -> bool:
    """True if all bytes except `size` bytes from `start` on are unchanged."""
    rest = np.delete(buffer.read(0, buffer.size), np.s_[start : start + size])
    return set(rest.tolist()) == {UNTOUCHED}


def _bind_loosely(device: Device, node: Tensor) -> tp.Part:
    """A part that holds the only references to its memory."""
    graph, kind = tp.Graph(node), device.buffer_type
    places = {t: Place(kind.alloc(kind.alloc_size(t)), 0) for t in (*graph.leafs, *graph.nodes)}
    return tp.Part.of(graph, tp.Bindings(places))


def _in_place(work: Rig, device: Device, x: Tensor) -> Tensor:
    """One op over the memory of `x`; skips the test if the device refuses it."""
    if not tp.ops.replaceable_sources(work.op.build(x)):
        pytest.skip(f"{device.name}: {work.op.name} does not work in place")
    node = tp.in_place(work.op.build(x))
    if device.refuses(node):
        pytest.skip(f"{device.name} does not do {work.op.name} in place")
    return node


def _unknown() -> Tensor:
    """A node with an op of another distribution, which no device supports."""
    return replace(tp.dup(tp.input("x", (4,), tp.F32)), op="kit.nobody_knows_this")


def _count_plans(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that collects the parts that `backend` plans from now on."""
    planned: list[Any] = []
    plan = backend._plan

    def counted(bound: tp.Part) -> Plan:
        planned.append(bound)
        return plan(bound)

    monkeypatch.setattr(backend, "_plan", counted)
    return planned

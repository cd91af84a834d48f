"""The plan suite passes on sound devices and catches those with a fault."""

import pytest

import tensorplug as tp
from tensorplug.device.plan import NodePlan
from tensorplug_testing.null import NullDevice
from tensorplug_testing.suites.plans import PlanTests


class TestPlans(PlanTests):
    """Every test of the suite on every device of the folder."""


# --- planted faults ----------------------------------------------------------------------------


def device_with(plan: type[NodePlan] = NodePlan, **options):
    """Makes devices whose streams plan with another class."""

    def make() -> NullDevice:
        device = NullDevice("faulty:0", **options)

        def planned(self, bound):
            self._check_support(bound)
            return plan(self, bound)

        device.backend_class = type("Faulty", (device.backend_class,), {"_plan": planned})
        return device

    return make


class Once(NodePlan):
    """Runs the first time only."""

    ran = False

    def _run(self) -> None:
        if not self.ran:
            super()._run()
        self.ran = True


class Unbound(NodePlan):
    """Stays where it was bound first."""

    def __init__(self, backend, bound) -> None:
        super().__init__(backend, bound)
        self.first = bound

    def _run(self) -> None:
        now, self.bound = self.bound, self.first
        super()._run()
        self.bound = now


class OldGraph(NodePlan):
    """Takes other places, but no other graph."""

    def __init__(self, backend, bound) -> None:
        super().__init__(backend, bound)
        self.nodes = bound.nodes

    def _run(self) -> None:
        for node in self.nodes:
            if not node.is_view and node.size:
                self.backend._compute(node, self.bound.bindings)


class Hoarder(NodePlan):
    """Remembers all that it was ever bound to."""

    def __init__(self, backend, bound) -> None:
        super().__init__(backend, bound)
        self.history = [bound]

    def _rebind(self) -> None:
        self.history.append(self.bound)


class Kept(NodePlan):
    """Is kept by its stream for ever."""

    def __init__(self, backend, bound) -> None:
        super().__init__(backend, bound)
        backend.kept = [*getattr(backend, "kept", []), self]


class InputsOnce(NodePlan):
    """Reads its leafs when it is made."""

    def __init__(self, backend, bound) -> None:
        super().__init__(backend, bound)
        self.values = None

    def _run(self) -> None:
        places = [self.bound.bindings.where(t) for t in self.bound.leafs]
        spans = list(zip(places, self.bound.leafs, strict=True))
        self.values = self.values or [p.buffer.read(p.offset, t.nbytes) for p, t in spans]
        for value, place in zip(self.values, places, strict=True):
            place.buffer.write(place.offset, value)
        super()._run()


class LastNode(NodePlan):
    """Expects something to compute."""

    def _run(self) -> None:
        assert [n for n in self.bound.nodes if not n.is_view][-1] is not None
        super()._run()


class Shifted(NodePlan):
    """Takes views for the tensors that they are views of."""

    def _run(self) -> None:
        bound, bindings = self.bound, self.bound.bindings
        views = [s for n in bound.nodes for s in n.sources if s.is_view]
        wrong = bindings.with_places({v: bindings.where(v.root) for v in views})
        self.bound = bound.bind(wrong)
        super()._run()
        self.bound = bound


class First(NodePlan):
    """Computes one output of many."""

    def _run(self) -> None:
        graph = tp.Graph(self.bound.outputs[0]) if self.bound.outputs else None
        graph = graph or self.bound
        for node in graph.nodes:
            if not node.is_view and node.size:
                self.backend._compute(node, self.bound.bindings)


class Untold(NodePlan):
    """Computes to memory of its own and never over a source."""

    def _run(self) -> None:
        for node in self.bound.nodes:
            if not node.is_view and node.size and not node.writes:
                self.backend._compute(node, self.bound.bindings)


def add_without_the_last(_node, out, a, b) -> None:
    out[..., :-1] = (a + b)[..., :-1]


class Greedy(NullDevice):
    """Refuses nothing."""

    def _refuses(self, node, source_types):
        return None


def plans_anything() -> NullDevice:
    device = Greedy("faulty:0")

    def planned(self, bound):
        return NodePlan(self, bound)

    device.backend_class = type("Faulty", (device.backend_class,), {"_plan": planned})
    return device


FAULTS = {
    "plan that runs once": (device_with(Once), "test_plan_sees_inputs_that_changed"),
    "plan that stays in its first memory": (device_with(Unbound), "test_plan_takes_other_memory"),
    "plan that stays with its first graph": (
        device_with(OldGraph),
        "test_plan_takes_another_graph_of_the_same_structure",
    ),
    "plan that holds what it was bound to": (
        device_with(Hoarder),
        "test_plan_lets_go_of_memory_it_was_bound_to",
    ),
    "stream that holds closed plans": (
        device_with(Kept),
        "test_closed_plan_lets_go_of_its_memory",
    ),
    "plan that reads its inputs once": (
        device_with(InputsOnce),
        "test_plan_sees_persistent_tensors_that_changed",
    ),
    "plan that cannot be empty": (
        device_with(LastNode),
        "test_plan_of_views_alone_has_nothing_to_do",
    ),
    "plan that ignores offsets of views": (
        device_with(Shifted),
        "test_plan_reads_sources_at_an_offset",
    ),
    "plan that computes the first output only": (
        device_with(First),
        "test_plan_of_many_outputs_computes_all_of_them",
    ),
    "plan that does not write in place": (
        device_with(Untold),
        "test_plan_writes_over_its_source",
    ),
    "kernel that does not finish rows": (
        device_with(kernels={"add": add_without_the_last}),
        "test_plan_computes_tensors_of_any_shape",
    ),
    "device that says yes to anything": (
        plans_anything,
        "test_op_that_nobody_knows_is_refused_with_a_reason",
    ),
    "stream that plans what it cannot do": (
        plans_anything,
        "test_planning_what_the_device_refuses_says_why",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_caught(failures, fault: str) -> None:
    make_device, test = FAULTS[fault]

    assert failures(PlanTests, make_device, test) == {test}

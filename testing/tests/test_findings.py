"""What the kit says about a device that is wrong, and about one that computes nothing."""

import re

import numpy as np
import pytest

from tensorplug.errors import DeviceError
from tensorplug_pytest import mark_gaps
from tensorplug_testing.cases import Arg, Case
from tensorplug_testing.cases.case import among
from tensorplug_testing.cases.laid import lay
from tensorplug_testing.check import Outcome, check
from tensorplug_testing.cli.certificate import Certificate
from tensorplug_testing.null import NullDevice
from tensorplug_testing.run import SHOWN, Run
from tensorplug_testing.support import ask
from tensorplug_testing.tiers import select

CASE = select("smoke", ops=["add"])[0]


class Confused(NullDevice):
    """Has no answer to what it is asked."""

    def _refuses(self, node, source_types):
        raise KeyError(node.op)


@pytest.fixture
def confused():
    with Confused("confused:0") as device:
        yield device


def outcome(case: str, op: str, verdict: str, detail: str = "") -> Outcome:
    return Outcome(case, op, verdict, detail, 0, 0.0)


def lines_of(*outcomes: Outcome) -> list[str]:
    return str(Run("acme:0", "ci", 0, outcomes)).splitlines()


def test_error_of_a_device_is_a_failure_that_names_the_line(confused):
    with confused.open() as backend:
        found = check(CASE, backend)

    assert found.verdict == "failed"
    assert found.detail.startswith(f"{CASE.id} (seed {CASE.seed()}): KeyError: 'add' (test_find")


def test_device_that_has_no_answer_is_an_error_with_the_case(confused):
    with pytest.raises(DeviceError, match=r"^confused:0: refuses\(\) has no answer to add-f32"):
        ask(confused, [CASE])


@pytest.mark.parametrize(("op", "what"), [("add", "add"), ("", "test_graph")])
def test_many_failures_of_one_kind_are_counted(op, what):
    failures = [outcome(f"test_graph[{i}]", op, "failed", f"no. {i}") for i in range(SHOWN + 2)]

    lines = lines_of(*failures)
    first = lines.index(f"FAILED {SHOWN + 2} x {what}")

    shown = [f"  no. {i}" for i in range(SHOWN)]
    assert lines[first + 1 : -1] == [*shown, "  2 more; --csv has all"]


def test_a_certificate_counts_failures_of_one_kind_too():
    failures = [outcome(f"add[{i}]", "add", "failed", f"no. {i}") for i in range(SHOWN + 2)]
    with NullDevice("acme:0") as device:
        page = str(Certificate(Run("acme:0", "ci", 0, failures), "acme", device.info, "acme 1.0"))

    head = [f"## {SHOWN + 2} failures", "", "```text", f"FAILED {SHOWN + 2} x add"]
    assert "\n".join(head) in page
    assert "\n  2 more; the JSON report has all\n```" in page


def test_failures_are_grouped_by_cause_over_ops_the_commonest_first():
    at = "KeyError at kernels.py:7"
    found = [
        Outcome("rope-a", "rope", "failed", "rope-a: error 1 > 0", 0, 0.0, "rope: error"),
        Outcome("add-a", "add", "failed", "add-a: KeyError", 0, 0.0, at),
        Outcome("test_plan[1]", "", "failed", "test_plan[1]: KeyError", 0, 0.0, at),
    ]

    lines = [line for line in lines_of(*found) if line.startswith(("FAILED", "  "))]

    assert lines == [
        "FAILED 2 x KeyError at kernels.py:7 (add, test_plan)",
        "  add-a: KeyError",
        "  test_plan[1]: KeyError",
        "FAILED rope-a: error 1 > 0",
    ]


def raising(_node, _out, *_sources):
    raise KeyError("no such lane")


def wrong(_node, out, *_sources):
    out[...] = 7


@pytest.mark.parametrize(
    ("kernel", "cause"), [(raising, r"KeyError at test_findings\.py:\d+"), (wrong, "OP: error")]
)
def test_one_mistake_has_one_cause_in_all_cases_of_an_op(kernel, cause):
    device = NullDevice("null:0", kernels={"add": kernel, "mul": kernel})

    with device, device.open() as backend:
        found = [check(case, backend) for case in select("smoke", ops=["add", "mul"])]

    failed = [outcome for outcome in found if outcome.verdict == "failed"]
    assert len(failed) > 2
    assert {outcome.op for outcome in failed} == {"add", "mul"}
    assert all(re.fullmatch(cause.replace("OP", outcome.op), outcome.cause) for outcome in failed)


@pytest.mark.parametrize("text", ["0.49999997", "-0.49999997", "1e-40", "nan", "0.1", "65519"])
def test_value_in_a_case_id_is_the_value(text):
    data = among(float(text))

    (value,) = data.draw(np.random.default_rng(0), (1,))

    assert data.tag == f"among{text}"
    assert value == float(data.tag.removeprefix("among")) or np.isnan(value)


def test_wrong_element_is_shown_with_what_was_given_for_it():
    case = Case(op="add", args=(Arg((1,), data=among(0.49999997)), Arg((1,), data=among(0.25))))
    device = NullDevice("null:0", kernels={"add": wrong})

    with device, device.open() as backend:
        found = check(case, backend).detail

    assert found.endswith("first at (0,): 7.0, wanted 0.75 from 0.49999997 and 0.25")


def test_run_in_which_all_was_refused_says_why_it_did_not_pass():
    refusals = [outcome(f"rope-{i}", "rope", "refused", "no kernel for rope") for i in range(3)]

    assert lines_of(*refusals)[-2:] == [
        "nothing was computed, which counts as a failure; most often refused:",
        "  3 x no kernel for rope",
    ]


def test_byte_behind_a_tensor_is_reported_with_that_tensor():
    with NullDevice("null:0") as device, device.open() as backend:
        laid = lay(CASE, backend.buffer_type)
        laid.write_leafs()
        backend.compute(laid.bound)
        place = laid.bindings.where(laid.built.node)
        end = place.offset + laid.built.node.nbytes
        place.buffer.write(end + 4, b"!")

        found = laid.problem()
        laid.buffers.close()

    wanted = f"byte {end + 4} outside all tensors was changed, 4 after the end of {laid.built.node}"
    assert found.endswith(wanted)


class Item:
    """As much of a test as the plugin looks at."""

    def __init__(self, cls: type, name: str) -> None:
        self.cls = cls
        self.nodeid = f"file.py::{cls.__name__}::{name}"
        self.marks: list[str] = []

    def add_marker(self, mark) -> None:
        self.marks.append(mark.kwargs["reason"])


def with_gaps(gaps: dict[str, str]) -> type:
    return type("TestAcme", (), {"known_gaps": gaps, "test_case": None})


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("test_case[add-f32_7x5]", ["test_case[add-f32_7x5]"]),
        ("test_case[add-*", ["test_case[add-f32_7x5]", "test_case[add-f16_7x5]"]),
        ("test_case[[]add-f16*", ["test_case[add-f16_7x5]"]),
        ("test_case", []),
    ],
)
def test_gap_is_named_as_pytest_prints_it_or_by_a_pattern(pattern, names):
    cls = with_gaps({pattern: "not yet"})
    tests = ("add-f32_7x5", "add-f16_7x5", "mul-f32_7x5")
    items = [Item(cls, f"test_case[{test}]") for test in tests]

    mark_gaps(items)

    assert [item.nodeid.rpartition("::")[2] for item in items if item.marks] == names


def test_gap_without_a_test_gives_a_warning():
    items = [Item(with_gaps({"test_cas[add-*": "not yet"}), "test_case[add-f32_7x5]")]

    with pytest.warns(pytest.PytestWarning, match=r"TestAcme.known_gaps: 'test_cas\[add-\*' names"):
        mark_gaps(items)


def test_difference_says_what_was_got_and_what_was_wanted():
    with NullDevice("null:0") as device, device.open() as backend:
        laid = lay(CASE, backend.buffer_type)
        laid.write_leafs()
        place = laid.bindings.where(laid.built.node)
        place.buffer.fill(0, place.offset, laid.built.node.nbytes)

        found = laid.problem()
        laid.buffers.close()

    number = r"-?\d+\.\d+"
    wanted = rf"first at \(0, 0, 0, 0\): 0\.0, wanted {number} from {number} and {number}$"
    assert re.search(wanted, found)

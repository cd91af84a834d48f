"""A backend of the kind that strangers write passes the kit; with each of their errors it fails.

The errors are those that an author of a PyTorch backend made, or planted and saw passing. Each must
be found at tier smoke by the case or the test that is about it.
"""

import re
import sys
from pathlib import Path

import pytest

from tensorplug_testing.check import check
from tensorplug_testing.distributions import plugin_source, write_distribution
from tensorplug_testing.kit import DeviceTests
from tensorplug_testing.suites.copies import CopyTests
from tensorplug_testing.suites.given_back import GivenBackTests
from tensorplug_testing.suites.language import LanguageTests
from tensorplug_testing.suites.memory import MemoryTests
from tensorplug_testing.suites.plans import PlanTests
from tensorplug_testing.suites.plugin import PluginTests, heavy_imports
from tensorplug_testing.suites.weights import WeightTests
from tensorplug_testing.tiers import select

FOLDER = str(Path(__file__).parent / "arrays")
sys.path.insert(0, FOLDER)

from tensorplug_arrays import FAULTS  # noqa: E402
from tensorplug_arrays.device import OPS, ArraysDevice  # noqa: E402


class TestArrays(LanguageTests, WeightTests, GivenBackTests):
    """What errors of this kind show up in, on the device without any."""

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls):
        with ArraysDevice() as device:
            yield device


@pytest.mark.long
class TestAllOfArrays(DeviceTests):
    """The whole kit on the device without errors."""

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls):
        with ArraysDevice() as device:
            yield device


CAUGHT_BY_A_CASE = {
    "rope turns its source": ("rope", "source .* was changed"),
    "weights in bf16": ("get_rows", "not equal"),
    "angles and masks of the first run": ("rope", "second run of a plan"),
    "ids are clamped": ("get_rows", "not equal"),
    "errors of ids are raw": ("get_rows", "not equal|IndexError"),
}
CAUGHT_BY_A_TEST = {
    "rebind does nothing": (PlanTests, "test_plan_takes_other_memory"),
    "copies mind no overlap": (
        CopyTests,
        "test_bytes_are_copied_within_one_buffer_even_where_they_overlap",
    ),
    "more memory free than there is": (MemoryTests, "test_free_memory_is_part_of_all_memory"),
    "batches repeat modulo": (
        LanguageTests,
        "test_language_model_writes_what_the_reference_writes",
    ),
    "angles and masks of the first run": (
        LanguageTests,
        "test_language_model_writes_what_the_reference_writes",
    ),
    "decoded weights are kept": (
        WeightTests,
        "test_plan_reads_weights_that_are_written_after_a_run",
    ),
    "plans keep their memory": (GivenBackTests, "test_closed_plans_hold_no_memory"),
    "buffers keep their memory": (GivenBackTests, "test_closed_buffers_hold_no_memory"),
    "streams keep their scratch": (GivenBackTests, "test_closed_streams_hold_no_memory"),
}


def outcomes(*faults: str, ops=OPS):
    """What becomes of the cases of tier smoke."""
    with ArraysDevice(faults=faults) as device, device.open() as backend:
        return [check(case, backend) for case in select("smoke", ops=sorted(ops))]


def test_no_case_fails_without_errors() -> None:
    found = outcomes()

    assert [o.detail for o in found if o.verdict == "failed"] == []
    assert {o.op for o in found if o.verdict == "passed"} == OPS


@pytest.mark.parametrize("fault", CAUGHT_BY_A_CASE)
def test_error_is_caught_by_a_case_of_its_op(fault: str) -> None:
    op, text = CAUGHT_BY_A_CASE[fault]

    failed = [o.detail for o in outcomes(fault, ops=[op]) if o.verdict == "failed"]

    assert any(re.search(text, detail) for detail in failed)


@pytest.mark.parametrize("fault", CAUGHT_BY_A_TEST)
def test_error_is_caught_by_a_test(failures, fault: str) -> None:
    suite, test = CAUGHT_BY_A_TEST[fault]

    assert failures(suite, lambda: ArraysDevice(faults=[fault]), test) == {test}


def test_all_errors_at_once_fail_cases_of_every_op_they_are_in() -> None:
    failed = {o.op for o in outcomes(*FAULTS) if o.verdict == "failed"}

    assert {op for op, _ in CAUGHT_BY_A_CASE.values()} <= failed


def test_every_error_is_planted_somewhere() -> None:
    assert {*CAUGHT_BY_A_CASE, *CAUGHT_BY_A_TEST} == set(FAULTS)


# --- the score -----------------------------------------------------------------------------------

SCORES = {
    "return 1": "",
    "import json, numpy, tensorplug_cpu; return 1": "",
    "import importlib.util; return int(importlib.util.find_spec('heavy_driver') is not None)": "",
    "import heavy_driver; return 1": r"loads heavy_driver \(2 modules\) in \d+\.\d s",
    "raise OSError('no card')": "ends a fresh interpreter with status 1: OSError: no card",
}


@pytest.mark.parametrize("score", SCORES)
def test_packages_that_a_score_loads_are_named(tmp_path, monkeypatch, score: str) -> None:
    modules = {
        "acme_plugin.py": plugin_source(score=score),
        "heavy_driver/__init__.py": "import heavy_driver.library",
        "heavy_driver/library.py": "",
    }
    write_distribution(tmp_path, "acme", entry_points={"acme": "acme_plugin"}, modules=modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    assert re.fullmatch(SCORES[score], heavy_imports("acme_plugin"))


@pytest.mark.parametrize(("top", "caught"), [("", False), ("import heavy_driver", True)])
def test_entry_point_of_the_devices_own_package_is_looked_at(
    tmp_path, monkeypatch, failures, top: str, caught: bool
) -> None:
    entry = "tensorplug_arrays.entry" if caught else "tensorplug_arrays.plugin"
    modules = {
        "tensorplug_arrays/__init__.py": "",
        "tensorplug_arrays/entry.py": plugin_source(top=top),
        "tensorplug_arrays/plugin.py": plugin_source(),
        "heavy_driver.py": "",
    }
    write_distribution(tmp_path, "arrays", entry_points={"arrays": entry}, modules=modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    found = failures(PluginTests, ArraysDevice)

    assert found == ({"test_score_loads_nothing_but_the_plugin"} if caught else set())

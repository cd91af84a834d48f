"""A rehearsal of `benchmarks/cuda_gpu.py` over the stand-in for CuPy, which knows no speed.

It shows that the code runs; emulated, and no number of it means anything.
"""

import importlib
import json
import sys
from pathlib import Path

import pytest

from tensorplug_cuda import cublaslt, drivers
from tensorplug_emulator import missing

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.skipif(not BENCHMARKS.exists(), reason="the benchmarks are not here"),
]


@pytest.fixture
def load(monkeypatch):
    """A function that imports a benchmark; no test sees a module of an earlier one."""
    pytest.importorskip("tensorplug_llm")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = [path.stem for path in BENCHMARKS.glob("*.py")]
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def benchmark(load, machine, monkeypatch):
    """`cuda_gpu` on an emulated machine that has cuBLASLt."""
    from cublaslt import CublasLt

    library = CublasLt()
    monkeypatch.setattr(cublaslt, "library", lambda: library)
    return load("cuda_gpu")


@pytest.fixture
def model(load, tmp_path):
    """A tiny model of random weights."""
    return load("synthetic_model").write_model(tmp_path / "given.gguf", 3e5, "q8_0")


def run(benchmark, tmp_path, *words):
    """The status and the JSON of a rehearsal."""
    out = tmp_path / "out.json"
    status = benchmark.main(["--tiny", "--folder", str(tmp_path), "--out", str(out), *words])
    return status, json.loads(out.read_text())


def numbers(value):
    """All numbers in JSON that stand for a measured value."""
    if isinstance(value, dict):
        own = [value[key] for key in ("value", "share", "ceiling", "reached") if key in value]
        return own + [n for each in value.values() for n in numbers(each)]
    return [n for each in value for n in numbers(each)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    "section", ["ceilings", "matvec", "products", "plans", "branches", "allocation"]
)
def test_section_of_work_runs_emulated_and_tells_no_number(benchmark, tmp_path, section):
    status, found = run(benchmark, tmp_path, "--only", section, "--types", "f16 q8_0")

    assert (status, found["emulated"]) == (0, True)
    assert "failed" not in found["sections"][section]
    assert set(numbers(found)) == {None}


@pytest.mark.parametrize(
    ("section", "named"), [("model-q8_0", "q8_0"), ("model-f16", "f16"), ("gemma", "gemma")]
)
def test_section_of_models_runs_emulated_and_tells_no_number(
    benchmark, model, tmp_path, section, named
):
    words = ("--only", section, "--gemma", str(model), "--ways", "f32")

    status, found = run(benchmark, tmp_path, *words)

    assert (status, found["emulated"]) == (0, True)
    assert set(numbers(found)) == {None}
    assert not any("not run" in part for part in found["sections"].values())
    assert all("not run" not in found["asked"][n] for n in found["asked"] if named in n)


def test_rehearsal_is_not_recorded(benchmark, tmp_path):
    run(benchmark, tmp_path, "--only", "allocation")

    with pytest.raises(SystemExit, match="a rehearsal, of which nothing is recorded"):
        benchmark.main(["--record", str(tmp_path / "out.json")])


def test_figures_of_a_run_are_recorded_beside_those_that_were_not_run(
    benchmark, tmp_path, monkeypatch
):
    table, run_file = tmp_path / "verification.md", tmp_path / "run.json"
    table.write_text(f"before\n{benchmark.START}\n{benchmark.END}\nafter\n")
    monkeypatch.setattr(benchmark, "RECORDS", table)
    figure = {"value": 9.5, "unit": "us", "target": "<= 50", "reached": True, "note": "10 nodes"}
    results = {"date": "2000-01-01", "device": "a test", "tiny": False, "asked": {"rerun": figure}}
    run_file.write_text(json.dumps(results))

    benchmark.main(["--record", str(run_file)])

    lines = table.read_text().splitlines()
    assert sum("| not run |" in line for line in lines) == len(benchmark.ASKED) - 1
    assert any("| 9.5 us; 10 nodes |  | yes | 2000-01-01, a test |" in line for line in lines)
    assert (lines[0], lines[-1]) == ("before", "after")


def test_section_that_fails_lets_the_others_run(benchmark, tmp_path, monkeypatch):
    monkeypatch.setitem(benchmark.SECTIONS, "matvec", ("cuda_products", "nothing"))

    status, found = run(benchmark, tmp_path, "--only", "matvec,allocation")

    assert status == 1
    assert found["sections"]["matvec"]["failed"].startswith("AttributeError: ")
    assert "failed" not in found["sections"]["allocation"]


def test_machine_without_a_gpu_is_told_why(benchmark, tmp_path, monkeypatch):
    monkeypatch.setattr("cupy.EMULATED", None)
    monkeypatch.delattr("cupy.EMULATED")
    monkeypatch.setattr(drivers, "missing", lambda: "no GPU, as the test says")

    status, found = run(benchmark, tmp_path, "--only", "matvec,gemma")

    assert status == 0
    assert found["sections"]["gemma"] == {"not run": "no GPU, as the test says"}


def test_table_has_a_row_for_each_figure_that_is_asked_for(benchmark):
    text = benchmark.RECORDS.read_text()
    table = text.partition(benchmark.START)[2].partition(benchmark.END)[0]

    assert all(f"| {asked.what} | {asked} |" in table for asked in benchmark.ASKED.values())

"""The benchmarks `model_speeds`, `our_model` and `native`: what is measured, and how it is told."""

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"

pytestmark = pytest.mark.skipif(not BENCHMARKS.exists(), reason="the benchmarks are not here")


@pytest.fixture
def load(monkeypatch):
    """Imports a benchmark as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = [path.stem for path in BENCHMARKS.glob("*.py")]
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


class Text:
    """A reader that notes at which position it read how much."""

    def __init__(self):
        self.position = 0
        self.reads = []

    def read(self, ids):
        self.reads.append((self.position, len(ids)))
        self.position += len(ids)
        return 1

    def rewind(self, position):
        assert position <= self.position
        self.position = position


def measured(load, prompts, depths):
    """The reads of a measurement of one timed run, and its figures."""
    given = argparse.Namespace(prompts=prompts, depths=depths, tokens=2, repeat=1)
    text = Text()
    return text, load("model_speeds").speeds(text.read, text.rewind, 100, given)


def test_prompts_are_read_from_the_start_once_untimed_and_once_timed(load):
    text, figures = measured(load, "33 64", "")

    assert text.reads == [(0, 33), (0, 64), (0, 33), (0, 64)]
    assert list(figures) == ["prefill 33", "prefill 64"]


def test_texts_are_continued_at_each_depth_which_is_read_once_in_pieces(load):
    text, figures = measured(load, "", "600 8")

    twice = [[(depth, 1), (depth + 1, 1)] * 2 for depth in (8, 600)]
    assert text.reads == [(0, 8), *twice[0], (8, 512), (520, 80), *twice[1]]
    assert list(figures) == ["decode at 8", "decode at 600"]


def test_context_has_room_for_the_longest_text(load):
    given = argparse.Namespace(prompts="33", depths="8 3000", tokens=16)

    assert load("model_speeds").context(given) == 3016


@pytest.mark.long
def test_our_model_prints_speeds_load_and_memory(load, tmp_path):
    path = load("synthetic_model").write_model(tmp_path / "model.gguf", 3e5, "q8_0")

    words = ["--prompts", "5 9", "--depths", "8", "--tokens", "2", "--repeat", "1"]
    printed = subprocess.run(
        [sys.executable, BENCHMARKS / "our_model.py", path, *words],
        capture_output=True,
        text=True,
        check=True,
    )

    figures = json.loads(printed.stdout)
    names = ["prefill 5", "prefill 9", "decode at 8", "load_s", "peak_rss_mib"]
    assert list(figures) == names
    assert min(figures.values()) > 0


def test_named_synthetic_model_is_written_on_demand(load, tmp_path, monkeypatch):
    native = load("native")
    monkeypatch.setitem(native.SHAPES, "1g", (load("synthetic_model").WIDTHS[-1], 1))

    path = native.model_file("1g-q8_0", tmp_path / "models")

    assert path == tmp_path / "models" / "1g-q8_0.gguf"
    assert path.read_bytes()[:4] == b"GGUF"


def test_summary_and_table_tell_medians_ratios_and_shares(load, tmp_path):
    native = load("native")
    path = load("synthetic_model").write_model(tmp_path / "model.gguf", 3e5, "q8_0")
    size, products = native.weights(path)
    ceilings = {"read": size / 1e9 * 100, "int8": 2 * products / 1e9 * 1000, "hop_ns": 50}
    ours = {"prefill 33": 300.0, "prefill 64": 500.0, "decode at 8": 50.0, "load_s": 2.0}
    theirs = {"prefill 33": 100.0, "prefill 64": 250.0, "decode at 8": 40.0, "load_s": 1.0}

    summary = native.model_summary(path, [(ours, theirs, ceilings)])
    lines = list(native.tables({"device": "cpu", "small, 1 thread": summary}))

    assert summary["decode at 8"]["of memory"] == 0.5
    assert summary["prefill 64"]["of int8 peak"] == 0.5
    assert "of int8 peak" not in summary["prefill 33"]
    assert lines == [
        "| small, 1 thread | ours | theirs | ratio | rounds |",
        "|---|---|---|---|---|",
        "| prefill 33 | 300.0 | 100.0 | 3.0 | 3.0 to 3.0 |",
        "| prefill 64 | 500.0 | 250.0 | 2.0 | 2.0 to 2.0 |",
        "| decode at 8 | 50.0 | 40.0 | 1.25 | 1.25 to 1.25 |",
        "| time to load | 2.0 | 1.0 | 0.5 | 0.5 to 0.5 |",
        "",
    ]


def test_rounds_in_pieces_count_where_they_have_a_figure(load, tmp_path):
    native = load("native")
    path = load("synthetic_model").write_model(tmp_path / "model.gguf", 3e5, "q8_0")
    ceilings = {"read": 10.0, "int8": 10.0, "hop_ns": 50}
    pieces = [
        ({"prefill 33": 300.0}, {"prefill 33": 100.0}, ceilings),
        ({"decode at 8": 50.0}, {"decode at 8": 40.0}, ceilings),
        ({"decode at 8": 60.0}, {"decode at 8": 40.0}, ceilings),
    ]
    kept = tmp_path / "rounds"
    kept.write_text("".join(json.dumps(["m", 2, piece]) + "\n" for piece in pieces))

    summary = native.model_summary(path, native.kept(kept)["m", 2])

    assert summary["prefill 33"]["ratios"] == [3.0]
    assert summary["decode at 8"]["ratios"] == [1.25, 1.5]

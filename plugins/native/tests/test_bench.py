"""Measuring layouts of weights, and what loading makes of the answer."""

import json

import pytest

import tensorplug as tp
from tensorplug.graph.tensor import leaf
from tensorplug.system.cache import VARIABLE
from tensorplug_cpu.device import CPUDevice
from tensorplug_native import layouts
from tensorplug_native.bench import Measured, Speed, measure
from tensorplug_native.device import NativeDevice
from tensorplug_native.library import AUTO, library
from tensorplug_native.program import PANEL_ROWS
from tensorplug_native.rules import PACKABLE
from tensorplug_native.rules.products import INT8_LEVELS

LEVEL = library().level(AUTO).name
ROUNDS = pytest.mark.skipif(LEVEL not in INT8_LEVELS, reason="no products of bytes here")


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    """A cache of the test's own; what other tests know is read again afterwards."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    layouts.read_measured.cache_clear()
    yield tmp_path
    layouts.read_measured.cache_clear()


@ROUNDS
def test_a_measurement_decides_what_is_packed(device):
    weights = leaf("w", (PANEL_ROWS, layouts.LONG_ROW), tp.Q8_0)
    preferred = []

    for packed in (frozenset({tp.Q8_0}), frozenset()):
        layouts.write_measured(LEVEL, packed)
        preferred.append(device.panels.prefers(weights))

    assert preferred == [True, False]


@ROUNDS
def test_measuring_names_every_type_and_remembers_the_faster_layout(device):
    with device.open() as stream:
        found = measure(stream, size=1 << 16)

    assert {s.dtype for s in found.speeds} == PACKABLE
    assert found.kept
    assert layouts.read_measured(LEVEL) == {s.dtype for s in found.speeds if s.packs}
    assert set(json.loads(json.dumps(found.to_json()))["types"]) == {k.name for k in PACKABLE}


def test_the_report_has_a_line_for_each_type():
    speeds = [Speed(tp.Q4_K, rows=10e9, panels=12e9), Speed(tp.Q8_0, rows=10e9, panels=9e9)]

    text = str(Measured("a processor", "avx2", 2, speeds, kept=True))

    assert [line.split()[-1] for line in text.splitlines() if line.startswith("q")] == [
        "packed",
        "stored",
    ]


def test_panels_must_be_clearly_faster_to_be_worth_packing():
    assert not Speed(tp.Q4_K, rows=10e9, panels=10.5e9).packs
    assert Speed(tp.Q4_K, rows=10e9, panels=12e9).packs


def test_without_a_measurement_a_table_decides():
    assert layouts.packed_types("avx512") == PACKABLE - layouts.IN_ROWS["avx512"]
    assert layouts.packed_types("neon_dot") == PACKABLE


def test_short_rows_are_packed_whatever_was_measured_of_long_ones():
    layouts.write_measured("avx2", frozenset())

    assert layouts.packs("avx2", tp.Q8_0, 576)
    assert not layouts.packs("avx2", tp.Q8_0, 2048)
    assert not layouts.packs("avx2", tp.Q4_K, 512)


def test_a_measurement_of_another_processor_is_not_used(monkeypatch):
    layouts.write_measured("avx2", frozenset({tp.Q8_0}))
    monkeypatch.setattr(layouts, "processor", lambda: "another")

    assert layouts.read_measured("avx2") is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"for": 3}'])
def test_a_damaged_measurement_counts_as_none(content):
    layouts.MEASURED.write(layouts._file("avx2"), content)

    assert layouts.read_measured("avx2") is None


def test_devices_with_one_layout_are_refused():
    with (
        CPUDevice("cpu:0") as plain,
        plain.open() as stream,
        pytest.raises(tp.OptionError, match="in one layout only"),
    ):
        measure(stream)


def test_levels_with_one_layout_are_refused():
    with (
        NativeDevice("cpu:0") as native,
        native.open(level="baseline") as stream,
        pytest.raises(tp.OptionError, match="in one layout only"),
    ):
        measure(stream)

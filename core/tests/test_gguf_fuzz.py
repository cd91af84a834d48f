"""Properties of the GGUF reader for random files and for randomly damaged files."""

import io
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorplug.errors import FormatError
from tensorplug.gguf import GGUFFile, open_gguf

FUZZ = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# --- files made at random ------------------------------------------------------------------

ADD = {
    "uint8": st.integers(0, 2**8 - 1),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float32": st.floats(width=32, allow_nan=False),
    "float64": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "string": st.text(min_size=1, max_size=40),
    "array": st.one_of(
        st.lists(st.text(max_size=12), min_size=1, max_size=40),
        st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=40),
        st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40),
        st.lists(st.booleans(), min_size=1, max_size=40),
    ),
}
"""Values for each method `add_...` of the format's own writer."""

KEYS = st.text(min_size=1, max_size=20).filter(lambda key: not key.startswith("general."))
ENTRIES = st.dictionaries(
    KEYS, st.one_of([st.tuples(st.just(kind), values) for kind, values in ADD.items()]), max_size=8
)
STORAGE = st.sampled_from([np.float32, np.float16, np.float64, np.int8, np.int16, np.int32])
SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=4)
TENSORS = st.dictionaries(st.text(min_size=1, max_size=20), st.tuples(STORAGE, SHAPES), max_size=6)
ALIGNMENTS = st.sampled_from([8, 32, 64, 256])


@settings(FUZZ, max_examples=150)
@given(entries=ENTRIES, tensors=TENSORS, alignment=ALIGNMENTS)
def test_a_written_file_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    entries: dict[str, tuple[str, Any]],
    tensors: dict[str, tuple[type[np.generic], list[int]]],
    alignment: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.gguf"
    arrays = {name: filled(dtype, shape) for name, (dtype, shape) in tensors.items()}
    write(path, entries, arrays, alignment)

    with open_gguf(path) as file:
        metadata = {key: plain(file.metadata[key]) for key in entries}
        data = {name: file.tensor_bytes(name).tobytes() for name in file.tensors}
        sizes = {t.name: t.ne[: t.rank][::-1] for t in file.tensors.values()}

    assert file.alignment == alignment
    assert metadata == {key: value for key, (_, value) in entries.items()}
    assert data == {name: array.tobytes() for name, array in arrays.items()}
    assert sizes == {name: array.shape for name, array in arrays.items()}


def write(
    path: Path,
    entries: dict[str, tuple[str, Any]],
    arrays: dict[str, npt.NDArray[Any]],
    alignment: int,
) -> None:
    writer = gguf.GGUFWriter(path, "fuzz")
    writer.add_custom_alignment(alignment)
    for key, (kind, value) in entries.items():
        getattr(writer, f"add_{kind}")(key, value)
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def filled(dtype: type[np.generic], shape: list[int]) -> npt.NDArray[Any]:
    """An array whose bytes are all different as far as there are different bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.arange(size, dtype=np.uint8).view(dtype).reshape(shape)


def plain(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray) else value


# --- files broken at random ----------------------------------------------------------------


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Two good files with every kind of value and five tensors; one has a long array of strings."""
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    entries: dict[str, tuple[str, Any]] = {
        "bool": ("bool", True),
        "few": ("array", ["a", "", "▁b", "x" * 300]),
        "floats": ("array", [0.5, -1.0]),
        "flags": ("array", [True, False]),
        "int": ("int64", -7),
        "uint": ("uint8", 7),
        "text": ("string", "some text"),
        "double": ("float64", 2.5),
    }
    many = {"words": ("array", [f"word{i}" for i in range(1200)])}
    arrays = {
        "vector": filled(np.float32, [16]),
        "matrix": filled(np.float16, [3, 8]),
        "cube": filled(np.int8, [2, 3, 4]),
        "all": filled(np.int32, [2, 1, 3, 4]),
        "last": filled(np.float32, [8]),
    }
    write(path, entries, arrays, 32)
    small = path.read_bytes()
    write(path, many | entries, arrays, 32)
    return [small, path.read_bytes()]


NUMBERS = st.one_of(
    st.sampled_from([0, 1, 2, 7, 8, 9, 31, 2**16, 2**31, 2**32, 2**61, 2**63 - 1, 2**63]),
    st.integers(0, 300),
    st.integers(0, 2**64 - 1),
)
PLACES = st.integers(0, 2**20)
"""Where in the file, modulo its size."""

CHANGES = st.one_of(
    st.tuples(st.just("put"), PLACES, st.binary(min_size=1, max_size=12)),
    st.tuples(st.just("put"), PLACES, NUMBERS.map(lambda n: struct.pack("<Q", n))),
    st.tuples(st.just("put"), PLACES, NUMBERS.map(lambda n: struct.pack("<I", n & 0xFFFFFFFF))),
    st.tuples(st.just("insert"), PLACES, st.binary(min_size=1, max_size=40)),
    st.tuples(st.just("delete"), PLACES, st.integers(1, 400)),
    st.tuples(st.just("repeat"), PLACES, st.integers(1, 400)),
    st.tuples(st.just("cut"), PLACES, st.none()),
)
CHANGE: dict[str, Callable[[bytes, int, Any], bytes]] = {
    "put": lambda raw, at, what: raw[:at] + what + raw[at + len(what) :],
    "insert": lambda raw, at, what: raw[:at] + what + raw[at:],
    "delete": lambda raw, at, size: raw[:at] + raw[at + size :],
    "repeat": lambda raw, at, size: raw[: at + size] + raw[at:],
    "cut": lambda raw, at, _: raw[:at],
}


@settings(FUZZ, max_examples=1500)
@given(which=st.integers(0, 1), changes=st.lists(CHANGES, min_size=1, max_size=3))
def test_a_broken_file_is_refused_or_its_tensors_lie_in_it(
    tmp_path_factory: pytest.TempPathFactory,
    wholes: list[bytes],
    which: int,
    changes: list[tuple[str, int, Any]],
) -> None:
    raw = wholes[which]
    for kind, place, what in changes:
        raw = CHANGE[kind](raw, place % max(len(raw), 1), what)
    path = tmp_path_factory.getbasetemp() / "broken.gguf"
    path.write_bytes(raw)

    for file in opened(path):
        check_laws(file, len(raw))


RECORDS = st.one_of(
    st.binary(max_size=40),
    NUMBERS.map(lambda n: struct.pack("<Q", n)),
    st.integers(0, 50).map(lambda n: struct.pack("<I", n)),
    st.binary(max_size=9).map(lambda raw: struct.pack("<Q", len(raw)) + raw),
)


@settings(FUZZ, max_examples=500)
@given(
    tensors=st.integers(0, 3),
    entries=st.integers(0, 3),
    records=st.lists(RECORDS, max_size=30).map(b"".join),
)
def test_noise_behind_a_good_header_is_refused_or_lawful(
    tmp_path_factory: pytest.TempPathFactory, tensors: int, entries: int, records: bytes
) -> None:
    raw = b"GGUF" + struct.pack("<IQQ", 3, tensors, entries) + records + bytes(64)
    path = tmp_path_factory.getbasetemp() / "noise.gguf"
    path.write_bytes(raw)

    for file in opened(path):
        check_laws(file, len(raw))


@pytest.mark.parametrize("number", [2**30, 2**40, 2**62, 2**63, 2**64 - 1])
@pytest.mark.parametrize("place", ["tensors", "entries", "key", "string", "array", "name", "ne"])
def test_nothing_is_allocated_on_the_word_of_the_file(
    tmp_path: Path, place: str, number: int
) -> None:
    path = tmp_path / "liar.gguf"
    path.write_bytes(LIES[place](struct.pack("<Q", number)))
    tracemalloc.start()

    with pytest.raises(FormatError):
        open_gguf(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 24 * 1024 + io.DEFAULT_BUFFER_SIZE


ONE, NONE = struct.pack("<Q", 1), struct.pack("<Q", 0)
HEADER = b"GGUF" + struct.pack("<I", 3)
ROOM = bytes(4096)
LIES = {
    "tensors": lambda n: HEADER + n + NONE + ROOM,
    "entries": lambda n: HEADER + NONE + n + ROOM,
    "key": lambda n: HEADER + NONE + ONE + n + ROOM,
    "string": lambda n: HEADER + NONE + ONE + ONE + b"k" + struct.pack("<I", 8) + n + ROOM,
    "array": lambda n: HEADER + NONE + ONE + ONE + b"k" + struct.pack("<II", 9, 6) + n + ROOM,
    "name": lambda n: HEADER + ONE + NONE + n + ROOM,
    "ne": lambda n: HEADER + ONE + NONE + ONE + b"k" + struct.pack("<I", 1) + n + ROOM,
}
"""Files of 4 kB with one number that is not true."""


def opened(path: Path) -> Iterator[GGUFFile]:
    """Yield the file if it is accepted; memory use is bounded either way."""
    size = path.stat().st_size
    tracemalloc.start()
    try:
        file = open_gguf(path)
    except FormatError as error:
        assert str(error).startswith(f"{path}: ")  # noqa: PT017 - other errors must pass through
        return
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 56 * 1024 + io.DEFAULT_BUFFER_SIZE + 8 * size
    with file:
        yield file


def check_laws(file: GGUFFile, size: int) -> None:
    """What holds for every file that is accepted."""
    assert file.memory.size == size
    ranges = sorted((t.offset, t.end) for t in file.tensors.values())
    assert all(0 <= start < end <= size for start, end in ranges)
    assert all(one[1] <= other[0] for one, other in pairwise(ranges))
    for tensor in file.tensors.values():
        assert file.tensor_bytes(tensor.name).size == tensor.nbytes
        assert tensor.offset % file.alignment == 0
        assert tensor.nbytes * tensor.dtype.block == np.prod(tensor.ne) * tensor.dtype.size
    for key in file.metadata:
        assert isinstance(file.metadata[key], int | float | str | list | np.ndarray)

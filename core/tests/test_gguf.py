"""What the GGUF reader returns for good files, and what it says about each kind of bad one."""

import gc
import os
import struct
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from tensorplug import dtypes
from tensorplug.errors import Closed, FormatError
from tensorplug.gguf import FileTensor, GGUFFile, open_gguf, read_beginning

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FETCH = "the file is truncated or damaged: fetch it again"
CONVERT = "convert the model again"
UPDATE = "use a newer tensorplug, or fetch the file again if it is damaged"


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def entry(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def array(kind: int, count: int, payload: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + payload


def info(
    name: str | bytes, ne: tuple[int, ...], kind: int = 0, offset: int = 0, rank: int | None = None
) -> bytes:
    dims = struct.pack(f"<I{len(ne)}Q", len(ne) if rank is None else rank, *ne)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def image(
    entries: tuple[bytes, ...] = (),
    infos: tuple[bytes, ...] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    """The bytes of a file. `counts` are those of tensors and of entries, if not the true ones."""
    tensors, pairs = counts or (len(infos), len(entries))
    header = b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)
    head = b"".join((header, *entries, *infos))
    return head + bytes(-len(head) % alignment) + data


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(raw: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(raw)
        return path

    return write


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file by the format's own writer, with every kind of value and four tensors."""
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("n.u8", 200)
    writer.add_int8("n.i8", -100)
    writer.add_uint16("n.u16", 60_000)
    writer.add_int16("n.i16", -30_000)
    writer.add_uint32("llama.block_count", 30)
    writer.add_int32("n.i32", -2_000_000_000)
    writer.add_uint64("n.u64", 2**63 + 1)
    writer.add_int64("n.i64", -(2**62))
    writer.add_float32("n.f32", 0.5)
    writer.add_float64("n.f64", 1e-300)
    writer.add_bool("n.yes", val=True)
    writer.add_bool("n.no", val=False)
    writer.add_string("general.name", "Ünïcode 🦙")
    writer.add_array("tokens", ["<s>", "▁the", "\n", "", "é", "x" * 300])
    writer.add_array("scores", [0.0, -1.5, 2.25])
    writer.add_array("types", [1, 2, 3])
    writer.add_array("flags", [True, False, True])
    writer.add_tensor("vector", np.arange(5, dtype=np.float32))
    writer.add_tensor("matrix", np.arange(12, dtype=np.float16).reshape(3, 4))
    writer.add_tensor("cube", np.arange(24, dtype=np.int8).reshape(2, 3, 4))
    quantised = np.arange(2 * 34, dtype=np.uint8).reshape(2, 34)
    writer.add_tensor("blocks", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# --- what a good file gives ----------------------------------------------------------------


def test_a_file_says_its_version_alignment_and_path(model: Path) -> None:
    with open_gguf(model) as file:
        assert (file.version, file.alignment, file.path) == (3, 32, model)


def test_scalars_and_strings_come_as_python_values(model: Path) -> None:
    expected = {
        "general.architecture": "llama",
        "n.u8": 200,
        "n.i8": -100,
        "n.u16": 60_000,
        "n.i16": -30_000,
        "llama.block_count": 30,
        "n.i32": -2_000_000_000,
        "n.u64": 2**63 + 1,
        "n.i64": -(2**62),
        "n.f32": 0.5,
        "n.f64": 1e-300,
        "n.yes": True,
        "n.no": False,
        "general.name": "Ünïcode 🦙",
    }

    with open_gguf(model) as file:
        found = {key: file.metadata[key] for key in expected}

    assert found == expected
    assert {k: type(v) for k, v in found.items()} == {k: type(v) for k, v in expected.items()}


def test_string_arrays_come_as_lists(model: Path) -> None:
    with open_gguf(model) as file:
        tokens = file.metadata["tokens"]

    assert tokens == ["<s>", "▁the", "\n", "", "é", "x" * 300]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("scores", np.array([0.0, -1.5, 2.25], np.float32)),
        ("types", np.array([1, 2, 3], np.int32)),
        ("flags", np.array([True, False, True])),
    ],
)
def test_number_arrays_come_as_aligned_read_only_arrays(
    model: Path, key: str, expected: npt.NDArray[Any]
) -> None:
    with open_gguf(model) as file:
        found = file.require(key, np.ndarray)

    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()
    assert found.flags.aligned
    assert not found.flags.writeable


def test_metadata_keeps_the_order_of_the_file_and_counts_without_decoding(model: Path) -> None:
    with open_gguf(model) as file:
        keys = list(file.metadata)

    assert keys[:3] == ["general.architecture", "n.u8", "n.i8"]
    assert len(file.metadata) == len(keys) == 18
    assert "tokens" in file.metadata
    assert "absent" not in file.metadata
    assert file.metadata.get("absent") is None


def test_tensors_say_type_sizes_and_place(model: Path) -> None:
    with open_gguf(model) as file:
        found = [(t.name, t.dtype, t.ne, t.rank, t.nbytes) for t in file.tensors.values()]

    assert found == [
        ("vector", dtypes.F32, (5, 1, 1, 1), 1, 20),
        ("matrix", dtypes.F16, (4, 3, 1, 1), 2, 24),
        ("cube", dtypes.I8, (4, 3, 2, 1), 3, 24),
        ("blocks", dtypes.Q8_0, (32, 2, 1, 1), 2, 68),
    ]


def test_what_was_released_can_be_read_again(model: Path) -> None:
    with open_gguf(model) as file:
        before = file.memory.tobytes()

        file.release()
        file.release("blocks", 0, len(before))

        assert file.memory.tobytes() == before


def test_tensor_bytes_are_the_stored_ones_without_a_copy(model: Path) -> None:
    with open_gguf(model) as file:
        raw = file.tensor_bytes("matrix")

        assert raw.view(np.float16).tolist() == list(range(12))
        assert not raw.flags.writeable
        assert np.shares_memory(raw, file.memory)
        assert file.tensor_bytes("blocks").tolist() == list(range(68))


def test_memory_is_the_whole_file(model: Path) -> None:
    with open_gguf(model) as file:
        assert file.memory.tobytes() == model.read_bytes()
        assert file.memory.data.readonly


def test_version_2_is_read(write: Callable[[bytes], Path]) -> None:
    path = write(image((entry("a", U8, b"\x07"),), (info("w", (2,)),), bytes(8), version=2))

    with open_gguf(str(path)) as file:
        assert (file.version, dict(file.metadata), list(file.tensors)) == (2, {"a": 7}, ["w"])


def test_a_file_may_hold_nothing_but_a_header(write: Callable[[bytes], Path]) -> None:
    with open_gguf(write(image())) as file:
        assert (dict(file.metadata), dict(file.tensors)) == ({}, {})


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_tensor_data_begins_at_the_alignment_of_the_file(
    write: Callable[[bytes], Path], alignment: int
) -> None:
    first, second = b"abcd", b"efgh"
    data = first.ljust(max(alignment, 4), b"\0") + second
    raw = image(
        (entry("general.alignment", U32, struct.pack("<I", alignment)),),
        (info("one", (1,)), info("two", (1,), 0, max(alignment, 4))),
        data,
        alignment=alignment,
    )

    with open_gguf(write(raw)) as file:
        assert file.alignment == alignment
        assert file.tensors["one"].offset % alignment == 0
        assert bytes(file.tensor_bytes("one")) == first
        assert bytes(file.tensor_bytes("two")) == second


def test_tensors_may_lie_in_any_order_and_with_gaps(write: Callable[[bytes], Path]) -> None:
    infos = (info("last", (1,), 0, 96), info("first", (1,)))
    raw = image((), infos, b"1111" + bytes(92) + b"4444" + bytes(7))

    with open_gguf(write(raw)) as file:
        assert list(file.tensors) == ["last", "first"]
        assert bytes(file.tensor_bytes("last")) == b"4444"


def test_strings_that_are_no_utf8_keep_their_bytes(write: Callable[[bytes], Path]) -> None:
    odd = b"\xe2\x96\xff"
    raw = image((entry("s", STRING, text(odd)), entry("a", ARRAY, array(STRING, 1, text(odd)))))

    with open_gguf(write(raw)) as file:
        one, many = file.require("s", str), file.require("a", list)

    assert one.encode("utf-8", "surrogateescape") == odd
    assert many[0].encode("utf-8", "surrogateescape") == odd


@pytest.mark.parametrize(
    ("stored", "kind"), [(U8, np.ndarray), (F64, np.ndarray), (BOOL, np.ndarray), (STRING, list)]
)
def test_empty_arrays_are_values_too(
    write: Callable[[bytes], Path], stored: int, kind: type[Any]
) -> None:
    path = write(image((entry("a", ARRAY, array(stored, 0, b"")),)))

    with open_gguf(path) as file:
        assert list(file.require("a", kind)) == []


WORDS = {
    "short": [b"%d" % i for i in range(30_000)],
    "long": [b"x" * (200 + i % 100) for i in range(3_000)],
    "one long among short": [b"y" * (9_000 if i == 1_500 else i % 7) for i in range(3_000)],
    "empty": [b""] * 30_000,
    "zero bytes, like lengths": [bytes(i % 40) for i in range(20_000)],
    "single zero bytes": [b"%d\0" % i for i in range(3_000)],
    "halves of characters": [[b"\xc3", b"\xa9", "é".encode()][i % 3] * 130 for i in range(3_000)],
}


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS.keys())
def test_the_end_of_long_string_arrays_is_found(
    write: Callable[[bytes], Path], words: list[bytes]
) -> None:
    payload = array(STRING, len(words), b"".join(map(text, words)))
    # The entry that follows looks like two more strings.
    raw = image(
        (entry("words", ARRAY, payload), entry("after", U64, bytes(8)), entry("b", U8, b"7"))
    )

    with open_gguf(write(raw)) as file:
        assert (file.metadata["after"], file.metadata["b"]) == (0, 55)
        expected = [word.decode("utf-8", "surrogateescape") for word in words]
        assert file.metadata["words"] == expected


def test_every_beginning_gives_all_records_or_asks_for_more(model: Path) -> None:
    data = np.frombuffer(model.read_bytes(), np.uint8)
    with open_gguf(model) as whole:
        records, keys = dict(whole.tensors), list(whole.metadata)
    first = min(tensor.offset for tensor in records.values())

    found = [read_beginning(data[:size], model, data.size) for size in range(data.size + 1)]

    enough = next(size for size, file in enumerate(found) if file is not None)
    assert first - 32 < enough <= first
    for file in found[enough:]:
        assert file is not None
        assert (dict(file.tensors), list(file.metadata)) == (records, keys)


def test_long_arrays_of_strings_in_a_beginning_ask_for_more() -> None:
    strings = b"".join(text(f"word {n}") for n in range(5000))
    data = np.frombuffer(image((entry("many", ARRAY, array(STRING, 5000, strings)),)), np.uint8)

    for size in (100, 20_000, 50_000, data.size - 32):
        assert read_beginning(data[:size], Path("m.gguf"), data.size) is None
    assert read_beginning(data, Path("m.gguf"), data.size) is not None


def test_beginning_that_contradicts_the_size_is_refused() -> None:
    data = np.frombuffer(image(infos=(info("a", (64,)),)), np.uint8)

    with pytest.raises(FormatError, match="needs 256 bytes at offset"):
        read_beginning(data, Path("m.gguf"), data.size + 255)


def test_repr_says_path_counts_and_state(model: Path) -> None:
    file = open_gguf(model)

    while_open = repr(file)
    file.close()

    assert while_open == f"<GGUFFile {model}, 18 metadata entries, 4 tensors, open>"
    assert repr(file) == f"<GGUFFile {model}, 18 metadata entries, 4 tensors, closed>"
    assert repr(file.metadata) == f"<Metadata {model}, 18 entries>"


# --- closing -------------------------------------------------------------------------------


def test_a_closed_file_keeps_what_needs_no_memory(model: Path) -> None:
    with open_gguf(model) as file:
        pass

    file.close()

    assert file.closed
    assert file.metadata["llama.block_count"] == 30
    assert file.tensors["vector"].nbytes == 20


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda file: file.memory, "is closed; open it again"),
        (lambda file: file.tensor_bytes("vector"), "is closed; open it again"),
        (
            lambda file: file.metadata["tokens"],
            "metadata 'tokens' is an array, and the file is closed; read arrays before you close "
            "it",
        ),
    ],
)
def test_a_closed_file_gives_no_data(
    model: Path, use: Callable[[GGUFFile], object], message: str
) -> None:
    file = open_gguf(model)
    file.close()

    with pytest.raises(Closed) as raised:
        use(file)

    assert str(raised.value) == f"{model}: {message}"


def test_arrays_outlive_the_file_and_the_last_one_unmaps_it(model: Path) -> None:
    with open_gguf(model) as file:
        raw = file.tensor_bytes("vector")
    mapped = weakref.ref(file_map(raw))

    values = raw.view(np.float32).tolist()
    before = mapped() is not None
    del raw
    gc.collect()

    assert values == [0, 1, 2, 3, 4]
    assert before
    assert mapped() is None


def file_map(array: npt.NDArray[Any]) -> object:
    """The mmap under an array."""
    base: object = array
    while (below := getattr(base, "base", None)) is not None:
        base = below
    return base.obj if isinstance(base, memoryview) else base


def test_metadata_outlives_a_file_that_nobody_closed(model: Path) -> None:
    tokens = open_gguf(model).metadata["tokens"]

    assert tokens == ["<s>", "▁the", "\n", "", "é", "x" * 300]


# --- require -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("llama.block_count", int, 30),
        ("llama.block_count", float, 30.0),
        ("n.f32", float, 0.5),
        ("n.yes", bool, True),
        ("general.architecture", str, "llama"),
        ("tokens", list, ["<s>", "▁the", "\n", "", "é", "x" * 300]),
    ],
)
def test_require_returns_values_of_the_kind_asked_for(
    model: Path, key: str, kind: type[Any], value: object
) -> None:
    with open_gguf(model) as file:
        found = file.require(key, kind)

    assert found == value
    assert type(found) is kind


@pytest.mark.parametrize(
    ("key", "kind", "message"),
    [
        ("general.architecture", int, "metadata 'general.architecture' is 'llama', and an integer"),
        ("n.yes", int, "metadata 'n.yes' is True, and an integer"),
        ("n.yes", float, "metadata 'n.yes' is True, and a number"),
        ("n.u8", bool, "metadata 'n.u8' is 200, and a bool"),
        ("n.f32", int, "metadata 'n.f32' is 0.5, and an integer"),
        ("n.u8", str, "metadata 'n.u8' is 200, and a string"),
        ("tokens", str, "metadata 'tokens' is an array of 6 strings, and a string"),
        (
            "tokens",
            np.ndarray,
            "metadata 'tokens' is an array of 6 strings, and an array of numbers",
        ),
        ("scores", list, "metadata 'scores' is an array of 3 float32, and an array of strings"),
    ],
)
def test_require_says_what_the_value_is_instead(
    model: Path, key: str, kind: type[Any], message: str
) -> None:
    with open_gguf(model) as file, pytest.raises(FormatError) as raised:
        file.require(key, kind)

    assert str(raised.value) == f"{model}: {message} is needed; use another file, or {CONVERT}"


@pytest.mark.parametrize(("kind", "words"), [(int, "an integer"), (list, "an array of strings")])
def test_require_names_what_is_missing(model: Path, kind: type[Any], words: str) -> None:
    with open_gguf(model) as file, pytest.raises(FormatError) as raised:
        file.require("llama.absent", kind)

    assert str(raised.value) == (
        f"{model}: metadata 'llama.absent', {words}, is missing; the model is incomplete: use "
        f"another file, or {CONVERT}"
    )


def test_require_shortens_long_values(write: Callable[[bytes], Path]) -> None:
    path = write(image((entry("template", STRING, text("x" * 5000)),)))

    with open_gguf(path) as file, pytest.raises(FormatError) as raised:
        file.require("template", int)

    assert str(raised.value) == (
        f"{path}: metadata 'template' is '{'x' * 79}..., and an integer is needed; use another "
        f"file, or {CONVERT}"
    )


def test_an_absent_tensor_is_named(model: Path) -> None:
    with open_gguf(model) as file, pytest.raises(FormatError) as raised:
        file.tensor_bytes("blk.0.attn_q.weight")

    assert str(raised.value) == (
        f"{model}: there is no tensor 'blk.0.attn_q.weight' among 4; the model is incomplete or of "
        "another architecture: use another file"
    )


# --- files that are none -------------------------------------------------------------------


def test_a_missing_file_is_a_format_error(tmp_path: Path) -> None:
    path = tmp_path / "absent.gguf"

    with pytest.raises(FormatError) as raised:
        open_gguf(path)

    assert str(raised.value) == (f"{path}: {os.strerror(2)}; give the path of a readable GGUF file")
    assert isinstance(raised.value.__cause__, FileNotFoundError)


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError) as raised:
        open_gguf(tmp_path)

    assert str(raised.value) == f"{tmp_path}: is a directory; give the path of a GGUF file"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    with pytest.raises(FormatError) as raised:
        open_gguf(path)

    assert str(raised.value) == f"{path}: is not a regular file; give the path of a GGUF file"


def test_a_path_with_a_zero_byte_is_a_format_error() -> None:
    with pytest.raises(FormatError, match="embedded null"):
        open_gguf("a\0b")


# --- planted faults ------------------------------------------------------------------------

W = info("w", (8,))
FAULTS = {
    "nothing at all": (b"", "is empty; fetch it again"),
    "other magic": (
        b"PK\x03\x04" + bytes(60),
        "is not a GGUF file: it begins with b'PK\\x03\\x04', not with b'GGUF'; give the path of a "
        "GGUF file",
    ),
    "Git LFS pointer": (
        b"version https://git-lfs.example/spec/v1\noid sha256:0\nsize 1\n",
        "is a Git LFS pointer; fetch the model with git lfs pull",
    ),
    "GGML": (b"lmgg" + bytes(60), f"is in the GGML format, which came before GGUF; {CONVERT}"),
    "GGMF": (b"fmgg" + bytes(60), f"is in the GGMF format, which came before GGUF; {CONVERT}"),
    "GGJT": (b"tjgg" + bytes(60), f"is in the GGJT format, which came before GGUF; {CONVERT}"),
    "half a magic": (b"GG", f"the header at offset 0 needs 24 bytes, and 2 are left; {FETCH}"),
    "half a header": (
        image()[:20],
        f"the header at offset 0 needs 24 bytes, and 20 are left; {FETCH}",
    ),
    "version 1": (image(version=1), f"is of version 1, and versions 2 and 3 are read; {CONVERT}"),
    "version 0": (image(version=0), f"is of version 0, and versions 2 and 3 are read; {UPDATE}"),
    "version 4": (image(version=4), f"is of version 4, and versions 2 and 3 are read; {UPDATE}"),
    "big-endian": (
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        "is a big-endian file of version 3, and only little-endian files are read; convert its "
        "byte order with gguf-convert-endian",
    ),
    "absurd tensor count": (
        image(counts=(2**63, 0)),
        "the header counts 9223372036854775808 tensors and 0 metadata entries, which need at least "
        f"295147905179352825856 bytes, and 8 are left; {FETCH}",
    ),
    "absurd entry count": (
        image(counts=(0, 2**40)),
        "the header counts 0 tensors and 1099511627776 metadata entries, which need at least "
        f"14293651161088 bytes, and 8 are left; {FETCH}",
    ),
    "one tensor too few": (
        image((entry("a", U8, b"\1"),), (W,), bytes(32), counts=(2, 1)),
        f"tensor '' has 0 dimensions, and 1 to 4 are allowed; {FETCH}",
    ),
    "key longer than the file": (
        image((struct.pack("<Q", 60_000) + bytes(8),)),
        f"the key of metadata entry 0 at offset 32 needs 60000 bytes, and 32 are left; {FETCH}",
    ),
    "key longer than keys are": (
        image((struct.pack("<Q", 2**64 - 1) + bytes(8),)),
        "the key of metadata entry 0 is 18446744073709551615 bytes long, and at most 65535 are "
        f"allowed; {FETCH}",
    ),
    "key not UTF-8": (
        image((entry(b"\xff\xfe", U8, b"\1"),)),
        f"the key of metadata entry 0 is not UTF-8: b'\\xff\\xfe'; {FETCH}",
    ),
    "key twice": (
        image((entry("a", U8, b"\1"), entry("a", U8, b"\1"))),
        f"metadata 'a' is there twice; {CONVERT}",
    ),
    "unknown value type": (
        image((entry("a", 13, bytes(8)),)),
        f"metadata 'a' is of the unknown type 13; {UPDATE}",
    ),
    "scalar cut short": (
        image((entry("key", U64, b"\1\2\3"),), alignment=1),
        f"metadata 'key' at offset 39 needs 8 bytes, and 3 are left; {FETCH}",
    ),
    "bool of value 2": (
        image((entry("a", BOOL, b"\2"),)),
        f"metadata 'a' is a bool of value 2, and bools are 0 or 1; {FETCH}",
    ),
    "array with a bool of value 255": (
        image((entry("a", ARRAY, array(BOOL, 2, b"\1\xff")),)),
        f"metadata 'a' holds bools that are neither 0 nor 1; {FETCH}",
    ),
    "string longer than the file": (
        image((entry("a", STRING, struct.pack("<Q", 2**62)),)),
        f"metadata 'a' at offset 45 needs 4611686018427387904 bytes, and 19 are left; {FETCH}",
    ),
    "unknown element type": (
        image((entry("a", ARRAY, array(99, 1, bytes(8))),)),
        f"metadata 'a' is of the unknown type 99; {UPDATE}",
    ),
    "array of arrays": (
        image((entry("a", ARRAY, array(ARRAY, 1, array(U8, 1, b"\1"))),)),
        f"metadata 'a' is an array of arrays, which is not supported; {CONVERT}",
    ),
    "array longer than the file": (
        image((entry("a", ARRAY, array(F32, 2**62, bytes(8))),)),
        f"metadata 'a' at offset 49 needs 18446744073709551616 bytes, and 15 are left; {FETCH}",
    ),
    "more strings than bytes": (
        image((entry("a", ARRAY, array(STRING, 2**61, bytes(16))),)),
        f"metadata 'a' at offset 49 needs 18446744073709551616 bytes, and 47 are left; {FETCH}",
    ),
    "last string too long": (
        image((entry("a", ARRAY, array(STRING, 2, text("b") + struct.pack("<Q", 200))),)),
        "metadata 'a' at offset 49: its 2 strings need more than the 47 bytes that are left; "
        + FETCH,
    ),
    "last string one byte too long": (
        image((entry("a", ARRAY, array(STRING, 1, text("bc")[:-1])),), alignment=1),
        "metadata 'a' at offset 49: its 1 strings need more than the 9 bytes that are left; "
        + FETCH,
    ),
    "string in the middle too long": (
        image((entry("a", ARRAY, array(STRING, 3, struct.pack("<Q", 2**64 - 1) + bytes(24))),)),
        "metadata 'a' at offset 49: its 3 strings need more than the 47 bytes that are left; "
        + FETCH,
    ),
    "alignment of another type": (
        image((entry("general.alignment", STRING, text("32")),)),
        f"metadata 'general.alignment' is '32', and an integer is needed; {CONVERT}",
    ),
    "alignment 0": (
        image((entry("general.alignment", U32, bytes(4)),)),
        f"metadata 'general.alignment' is 0, and a power of two is needed; {CONVERT}",
    ),
    "alignment 24": (
        image((entry("general.alignment", U32, struct.pack("<I", 24)),)),
        f"metadata 'general.alignment' is 24, and a power of two is needed; {CONVERT}",
    ),
    "alignment beyond the file": (
        image((entry("general.alignment", U32, struct.pack("<I", 2**31)),), (W,), bytes(32)),
        "tensor 'w' (8, f32) needs 32 bytes at offset 2147483648, and 0 are left; " + FETCH,
    ),
    "name not UTF-8": (
        image((), (info(b"\x80", (8,)),), bytes(32)),
        f"the name of tensor 0 is not UTF-8: b'\\x80'; {FETCH}",
    ),
    "tensor twice": (
        image((), (W, info("w", (8,), 0, 32)), bytes(64)),
        f"tensor 'w' is there twice; {CONVERT}",
    ),
    "no dimensions": (
        image((), (info("w", (8,), rank=0),), bytes(32)),
        f"tensor 'w' has 0 dimensions, and 1 to 4 are allowed; {FETCH}",
    ),
    "five dimensions": (
        image((), (info("w", (1, 1, 1, 1, 1)),), bytes(32)),
        f"tensor 'w' has 5 dimensions, and 1 to 4 are allowed; {FETCH}",
    ),
    "dimension 0": (
        image((), (info("w", (8, 0)),), bytes(32)),
        f"tensor 'w' has the dimensions [8, 0], and none may be 0; {CONVERT}",
    ),
    "sizes that overflow 64 bits": (
        image((), (info("w", (2**32, 2**32, 2**32, 2**32)),), bytes(32)),
        "tensor 'w' (4294967296 x 4294967296 x 4294967296 x 4294967296, f32) needs "
        f"1361129467683753853853498429727072845824 bytes at offset 96, and 32 are left; {FETCH}",
    ),
    "sizes that wrap to 32 bytes": (
        image((), (info("w", (8, 2**62 + 1)),), bytes(32)),
        "tensor 'w' (8 x 4611686018427387905, f32) needs 147573952589676412960 bytes at offset 96, "
        f"and 32 are left; {FETCH}",
    ),
    "part of a block": (
        image((), (info("w", (40, 2), 8),), bytes(96)),
        "tensor 'w' has rows of 40 elements, not a multiple of the block length 32 of q8_0; "
        + CONVERT,
    ),
    "removed type": (
        image((), (info("w", (32,), 4),), bytes(32)),
        f"tensor 'w' is of type 4, which was removed from the format; {CONVERT}",
    ),
    "unknown type": (
        image((), (info("w", (32,), 2**32 - 1),), bytes(32)),
        f"tensor 'w' is of the unknown type 4294967295; {UPDATE}",
    ),
    "offset off the alignment": (
        image((), (info("w", (8,), 0, 4),), bytes(64)),
        f"tensor 'w' begins at 4, not a multiple of the file's alignment 32; {CONVERT}",
    ),
    "offset beyond the file": (
        image((), (info("w", (8,), 0, 2**63),), bytes(32)),
        "tensor 'w' (8, f32) needs 32 bytes at offset 9223372036854775872, and 0 are left; "
        + FETCH,
    ),
    "data cut short": (
        image((), (W,), bytes(31)),
        f"tensor 'w' (8, f32) needs 32 bytes at offset 64, and 31 are left; {FETCH}",
    ),
    "tensors that overlap": (
        image((), (info("w", (16,)), info("v", (8,), 0, 32)), bytes(64)),
        "tensors 'w' and 'v' overlap: one is the bytes 96 to 160, the other begins at 128; "
        + CONVERT,
    ),
    "tensors in one place": (
        image((), (W, info("v", (8,))), bytes(64)),
        "tensors 'w' and 'v' overlap: one is the bytes 96 to 128, the other begins at 96; "
        + CONVERT,
    ),
}


@pytest.mark.parametrize(("raw", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_said_in_one_paragraph(
    write: Callable[[bytes], Path], raw: bytes, message: str
) -> None:
    path = write(raw)

    with pytest.raises(FormatError) as raised:
        open_gguf(path)

    assert str(raised.value) == f"{path}: {message}"


def test_a_long_name_is_shortened_in_errors(write: Callable[[bytes], Path]) -> None:
    path = write(image((), (info("n" * 1000, (8,), 4),), bytes(32)))

    with pytest.raises(FormatError) as raised:
        open_gguf(path)

    assert str(raised.value) == (
        f"{path}: tensor '{'n' * 79}... is of type 4, which was removed from the format; {CONVERT}"
    )


def test_a_file_cut_anywhere_is_refused(model: Path) -> None:
    whole = model.read_bytes()
    end = max(tensor.end for tensor in open_gguf(model).tensors.values())

    accepted = [size for size in range(len(whole) + 1) if accept(whole[:size])]

    assert accepted == list(range(end, len(whole) + 1))


def test_absurd_numbers_planted_anywhere_never_escape_the_checks(model: Path) -> None:
    whole = model.read_bytes()
    head = min(tensor.offset for tensor in open_gguf(model).tensors.values())
    numbers = [struct.pack("<Q", n) for n in (2**64 - 1, 2**63, 2**63 - 1, 2**32, 0)]

    planted = [
        accept(whole[:offset] + number + whole[offset + 8 :])
        for offset in range(8, head - 8)
        for number in numbers
    ]

    assert [file for file in planted if file and lies_outside(file)] == []


def accept(raw: bytes) -> GGUFFile | None:
    """Parse the bytes of a file; None if they are refused."""
    try:
        return GGUFFile(np.frombuffer(raw, np.uint8), Path("model.gguf"))
    except FormatError:
        return None


def lies_outside(file: GGUFFile) -> list[FileTensor]:
    """The tensors of a file whose bytes are not all in it."""
    return [t for t in file.tensors.values() if file.tensor_bytes(t.name).size != t.nbytes]

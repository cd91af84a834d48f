"""The reader of safetensors: what it reads, and an error for each way to be wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorplug.errors import FormatError
from tensorplug_llm.folders.safetensors import MOST_HEADER, open_safetensors

from .hf_folders import safetensors

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)
WHOLE = safetensors(
    {
        "b": ("F32", (3, 4), VALUES.tobytes()),
        "a": ("BF16", (2,), bytes(4)),
        "scalar": ("F16", (), bytes(2)),
        "wrapped": ("F8_E4M3", (6,), bytes(6)),
        "empty": ("F32", (0, 4), b""),
        "wide": ("F16", (1, 1, 1, 1, 2), bytes(4)),
    }
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_tensors_say_type_and_sizes_and_share_the_files_memory(path: Path) -> None:
    path.write_bytes(WHOLE)

    with open_safetensors(path) as file:
        found = [(t.name, t.dtype.name, t.ne, t.rank, t.nbytes) for t in file.tensors.values()]
        values = file.tensor_bytes("b").view(np.float32)

        assert values.tolist() == list(range(12))
        assert np.shares_memory(values, file.memory)
    assert found == [
        ("b", "f32", (4, 3, 1, 1), 2, 48),
        ("a", "bf16", (2, 1, 1, 1), 1, 4),
        ("scalar", "f16", (1, 1, 1, 1), 1, 2),
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrapped", "'wrapped' is F8_E4M3, and weights must be F32, F16, BF16; use the model in"),
        ("empty", "'empty' has the shape [0, 4] and so no elements"),
        ("wide", "'wide' has 5 dimensions, and at most 4 are supported"),
        ("other", "there is no tensor 'other' among 3"),
    ],
)
def test_tensor_that_no_model_can_use_is_refused_when_it_is_asked_for(
    path: Path, name: str, message: str
) -> None:
    path.write_bytes(WHOLE)

    with open_safetensors(path) as file, pytest.raises(FormatError) as caught:
        file.tensor_bytes(name)

    assert message in str(caught.value)


def entry(dtype: Any = "F32", shape: Any = (2,), place: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": place}


def head(value: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


WRONG: dict[str, tuple[bytes, str]] = {
    "short": (b"{}", "has 2 bytes, and the length of the header takes 8"),
    "long": (head({}, length=3), "says that its header has 3 bytes, and 2 follow"),
    "huge": (head({}, length=2**63), f"a header has at most {MOST_HEADER}"),
    "gguf": (b"GGUF" + bytes(20), "is a GGUF file; give its path as the model"),
    "array": (head([]), "its header does not begin with '{'"),
    "json": (head(b"{'a': 1}"), "the header: is not valid JSON"),
    "deep": (head(b'{"a":' + b"[" * 100_000), "the header: is not valid JSON (too deep)"),
    "bytes": (head(b'{"\xff": 1}'), "is not valid JSON ('utf-8' codec"),
    "nan": (head(b'{"a": NaN}'), "NaN is not a number of JSON"),
    "twice": (head(b'{"a": 1, "a": 2}'), "'a' stands twice"),
    "notes": (head({"__metadata__": {"a": 1}}), "'__metadata__' must hold strings"),
    "field": (head({"a": {"dtype": "F32"}}), "'a' needs exactly 'dtype', 'shape' and"),
    "more": (head({"a": entry() | {"b": 1}}, bytes(8)), "'a' needs exactly 'dtype', 'shape' and"),
    "type": (head({"a": entry("F33")}, bytes(8)), "'a' is of the unknown type 'F33'"),
    "typed": (head({"a": entry(["F32"])}, bytes(8)), "is of the unknown type ['F32']"),
    "negative": (head({"a": entry(shape=[-2])}, bytes(8)), "has the shape [-2] and the offsets"),
    "real": (head({"a": entry(shape=[2.0])}, bytes(8)), "both must be lists of integers"),
    "truth": (head({"a": entry(shape=[True])}, bytes(8)), "both must be lists of integers"),
    "one": (head({"a": entry(place=[8])}, bytes(8)), "both must be lists of integers"),
    "size": (head({"a": entry(shape=[3])}, bytes(8)), "'a' ([3], F32) needs 12 bytes, and has 8"),
    "overflow": (head({"a": entry(shape=[2**62, 4])}, bytes(8)), "needs 73786976294838206464 byt"),
    "back": (head({"a": entry(place=[8, 0])}, bytes(8)), "needs 8 bytes, and has -8"),
    "gap": (head({"a": entry(place=[4, 12])}, bytes(12)), "'a' does not follow the data"),
    "overlap": (
        head({"a": entry(), "b": entry(place=[4, 12])}, bytes(12)),
        "'b' overlaps the one before it: it begins at 4, and the data before it end at 8",
    ),
    "less": (head({"a": entry()}, bytes(7)), "its tensors have 8 bytes of data, and the file 7"),
    "rest": (head({"a": entry()}, bytes(9)), "its tensors have 8 bytes of data, and the file 9"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_file_is_an_error_that_says_what_is_wrong(name: str, path: Path) -> None:
    raw, message = WRONG[name]
    path.write_bytes(raw)

    with pytest.raises(FormatError) as caught:
        open_safetensors(path)

    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_wrong_files_are_wrong_for_the_package_safetensors_too(path: Path) -> None:
    load: Callable[[bytes], Any] = pytest.importorskip("safetensors").deserialize
    load(safetensors({"b": ("F32", (3, 4), VALUES.tobytes())}))
    # Only here: a key that stands twice, and a field that the format does not have.
    for name in WRONG.keys() - {"twice", "more"}:
        with pytest.raises(Exception, match=r"."):  # the package has no narrower type
            load(WRONG[name][0])

"""Names, ids and sizes of element and block types."""

import gguf
import numpy as np
import pytest

import tensorplug as tp
from tensorplug.dtypes import DTYPES, MXFP4, REMOVED_IDS, dtype

# name, id, elements per block, bytes per block: the format's own numbers, written down once more.
FORMAT = [
    ("f32", 0, 1, 4),
    ("f16", 1, 1, 2),
    ("q4_0", 2, 32, 18),
    ("q4_1", 3, 32, 20),
    ("q5_0", 6, 32, 22),
    ("q5_1", 7, 32, 24),
    ("q8_0", 8, 32, 34),
    ("q8_1", 9, 32, 36),
    ("q2_K", 10, 256, 84),
    ("q3_K", 11, 256, 110),
    ("q4_K", 12, 256, 144),
    ("q5_K", 13, 256, 176),
    ("q6_K", 14, 256, 210),
    ("q8_K", 15, 256, 292),
    ("iq2_xxs", 16, 256, 66),
    ("iq2_xs", 17, 256, 74),
    ("iq3_xxs", 18, 256, 98),
    ("iq1_s", 19, 256, 50),
    ("iq4_nl", 20, 32, 18),
    ("iq3_s", 21, 256, 110),
    ("iq2_s", 22, 256, 82),
    ("iq4_xs", 23, 256, 136),
    ("i8", 24, 1, 1),
    ("i16", 25, 1, 2),
    ("i32", 26, 1, 4),
    ("i64", 27, 1, 8),
    ("f64", 28, 1, 8),
    ("iq1_m", 29, 256, 56),
    ("bf16", 30, 1, 2),
    ("tq1_0", 34, 256, 54),
    ("tq2_0", 35, 256, 66),
    ("mxfp4", 39, 32, 17),
    ("nvfp4", 40, 64, 36),
    ("q1_0", 41, 128, 18),
    ("q2_0", 42, 64, 18),
]
PEERS = {
    kind.name.lower(): (int(kind), *gguf.GGML_QUANT_SIZES[kind])
    for kind in gguf.GGMLQuantizationType
    # Its q8_1 has two f32 before the quants, an older layout; in the format they are f16.
    if kind in gguf.GGML_QUANT_SIZES and kind.name != "Q8_1"
}


def test_table_holds_every_type_of_the_format_and_no_other() -> None:
    assert [(t.name, t.id, t.block, t.size) for t in DTYPES] == FORMAT


@pytest.mark.parametrize("name", sorted(PEERS))
def test_sizes_agree_with_the_gguf_package(name: str) -> None:
    mine = dtype(name)

    assert (mine.id, mine.block, mine.size) == PEERS[name]


@pytest.mark.parametrize("kind", DTYPES, ids=repr)
def test_types_are_found_by_name_in_any_case_by_id_and_by_themselves(kind: tp.DType) -> None:
    assert dtype(kind.name) is kind
    assert dtype(kind.name.upper()) is kind
    assert dtype(kind.id) is kind
    assert dtype(np.int64(kind.id)) is kind
    assert dtype(kind) is kind


@pytest.mark.parametrize("kind", [t for t in DTYPES if t.numpy], ids=repr)
def test_numpy_types_are_found_in_each_spelling(kind: tp.DType) -> None:
    assert dtype(np.dtype(kind.numpy)) is kind
    assert dtype(np.dtype(kind.numpy).type) is kind


def test_python_float_means_f64() -> None:
    assert dtype(float) is tp.F64


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("q4_k_m", "dtype: unknown type 'q4_k_m'; did you mean q4_K?"),
        ("f-32", "dtype: unknown type 'f-32'; did you mean f32?"),
        (99, "dtype: unknown type id 99; known ids are 0 to 42"),
        (-1, "dtype: unknown type id -1; known ids are 0 to 42"),
        (4, "dtype: type id 4 was removed from the format; convert the file again"),
        (
            np.dtype(np.complex64),
            "dtype: NumPy type complex64 has no tensor type; use one of f32, f16, i8, i16, i32, "
            "i64, f64",
        ),
        (
            np.dtype(">f4"),
            "dtype: NumPy type >f4 has no tensor type; use one of f32, f16, i8, i16, i32, i64, f64",
        ),
        (None, "dtype: None is not a type; give a name, a GGUF type id or a NumPy type"),
        (True, "dtype: True is not a type; give a name, a GGUF type id or a NumPy type"),
        (1.5, "dtype: 1.5 is not a type; give a name, a GGUF type id or a NumPy type"),
    ],
)
def test_unknown_types_are_refused_with_the_nearest_known(what, message: str) -> None:
    with pytest.raises(tp.DTypeError) as error:
        dtype(what)

    assert str(error.value) == message


@pytest.mark.parametrize("what", [tp.F16, "f16", "F16", "float16", np.float16, np.dtype("f2"), 1])
def test_a_type_may_be_given_in_any_spelling(what) -> None:
    x = tp.input("x", (4,), what)

    assert x.dtype is tp.F16
    assert tp.cast(x, what).dtype is tp.F16


def test_name_like_no_other_lists_all_names() -> None:
    with pytest.raises(tp.DTypeError, match=r"unknown type 'zzz'; known: f32, f16, q4_0, .*q2_0"):
        dtype("zzz")


@pytest.mark.parametrize("number", sorted(REMOVED_IDS))
def test_removed_ids_say_so(number: int) -> None:
    with pytest.raises(tp.DTypeError, match="was removed from the format"):
        dtype(number)


@pytest.mark.parametrize("kind", DTYPES, ids=repr)
def test_rows_count_whole_blocks(kind: tp.DType) -> None:
    assert kind.row_size(0) == 0
    assert kind.row_size(3 * kind.block) == 3 * kind.size


def test_part_of_a_block_is_refused() -> None:
    with pytest.raises(tp.ShapeError) as error:
        tp.Q4_K.row_size(300)

    assert str(error.value) == (
        "q4_K: a row of 300 elements is not a multiple of the block length 256; pad the row"
    )


@pytest.mark.parametrize(
    ("kind", "is_block", "is_float", "is_integer", "storage"),
    [
        (tp.F32, False, True, False, "float32"),
        (tp.F16, False, True, False, "float16"),
        (tp.BF16, False, True, False, "uint16"),
        (tp.F64, False, True, False, "float64"),
        (tp.I8, False, False, True, "int8"),
        (tp.I64, False, False, True, "int64"),
        (tp.Q8_0, True, False, False, "uint8"),
        (MXFP4, True, False, False, "uint8"),
    ],
)
def test_kinds_and_storage(kind, is_block, is_float, is_integer, storage) -> None:
    assert (kind.is_block, kind.is_float, kind.is_integer) == (is_block, is_float, is_integer)
    assert kind.storage == np.dtype(storage)


def test_repr_is_the_name() -> None:
    assert repr(tp.Q4_K) == "q4_K"

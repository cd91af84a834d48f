"""The command `quantize`, on a tiny model: what it writes, what it keeps, what it refuses."""

import json
import struct
import sys
from dataclasses import replace

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner

import tensorplug as tp
from tensorplug.blocks.rows import decode_rows
from tensorplug.cli import app
from tensorplug.gguf import open_gguf
from tensorplug_cpu.encode import can_encode
from tensorplug_cpu.quantize.choice import Choice, choose
from tensorplug_cpu.quantize.write import write as quantize_file

WIDE, NARROW = 256, 96
TENSORS = {
    "token_embd.weight": (12, WIDE),
    "blk.0.attn_norm.weight": (WIDE,),
    "blk.0.attn_q.weight": (WIDE, WIDE),
    "blk.0.attn_output.weight": (WIDE, NARROW),
    "blk.0.ffn_gate_inp.weight": (4, WIDE),
    "blk.0.ffn_up_exps.weight": (4, 8, WIDE),
    "blk.0.conv.weight": (6, 4),
    "blk.0.attn_q.bias": (WIDE,),
    "output.weight": (12, WIDE),
}
"""Shapes in NumPy order."""


def values(name):
    rng = np.random.default_rng(len(name))
    return rng.normal(size=TENSORS[name]).astype(np.float32)


def write(path, tensors, metadata=()):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.name", "tiny")
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "é"])
    writer.add_array("tokenizer.ggml.token_type", [1, 1, 3])
    for key, value in metadata:
        writer.add_uint32(key, value)
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def model(tmp_path):
    return write(tmp_path / "in.gguf", {name: values(name) for name in TENSORS})


@pytest.fixture
def importance(tmp_path):
    """What matters to two weights; the last expert was never chosen."""
    rng = np.random.default_rng(1)
    return write(
        tmp_path / "importance.gguf",
        {
            "blk.0.attn_q.weight.in_sum2": rng.uniform(0, 9, (1, WIDE)).astype(np.float32),
            "blk.0.attn_q.weight.counts": np.float32([[3]]),
            "blk.0.ffn_up_exps.weight.in_sum2": rng.uniform(0, 9, (4, WIDE)).astype(np.float32),
            "blk.0.ffn_up_exps.weight.counts": np.float32([[3], [1], [2], [0]]),
        },
    )


@pytest.fixture
def run(tmp_path):
    """Quantise to `out.gguf`; gives the exit status, stdout and stderr."""

    def call(source, *options, out=tmp_path / "out.gguf"):
        done = CliRunner().invoke(app, ["quantize", str(source), str(out), *map(str, options)])
        return done.exit_code, done.stdout, done.stderr

    return call


def types(path):
    with open_gguf(path) as file:
        return {tensor.name: tensor.dtype.name for tensor in file.tensors.values()}


def test_weights_take_the_type_and_all_else_stays(model, run, tmp_path):
    status, _, _ = run(model, "--type", "Q4_K")

    assert status == 0
    assert types(tmp_path / "out.gguf") == {
        "token_embd.weight": "q4_K",
        "blk.0.attn_norm.weight": "f32",
        "blk.0.attn_q.weight": "q4_K",
        "blk.0.attn_output.weight": "q5_0",
        "blk.0.ffn_gate_inp.weight": "f32",
        "blk.0.ffn_up_exps.weight": "q4_K",
        "blk.0.conv.weight": "f16",
        "blk.0.attn_q.bias": "f32",
        "output.weight": "q6_K",
    }


@pytest.mark.parametrize("name", ["q4_0", "q8_0", "Q2_K", "Q5_K", "iq4_nl", "nvfp4", "bf16"])
def test_both_readers_find_the_values_nearly_as_they_were(model, run, tmp_path, name):
    run(model, "--type", name, "--pure")

    reader = gguf.GGUFReader(tmp_path / "out.gguf")
    with open_gguf(tmp_path / "out.gguf") as file:
        for theirs, ours in zip(reader.tensors, file.tensors.values(), strict=True):
            wanted = values(ours.name)
            found = np.empty(wanted.shape, np.float32).reshape(-1, ours.ne[0])
            raw = file.tensor_bytes(ours.name).reshape(len(found), -1)
            decode_rows(ours.dtype, raw, found)
            np.testing.assert_array_equal(
                np.asarray(theirs.data).view(np.uint8).ravel(), raw.ravel()
            )
            assert np.mean(np.square(found.reshape(wanted.shape) - wanted)) < 0.1


def test_metadata_is_copied_and_says_what_the_file_is_now(model, run, tmp_path):
    run(model, "--type", "Q4_K")

    with open_gguf(tmp_path / "out.gguf") as file:
        found = {key: file.metadata[key] for key in file.metadata}
    tokens, kinds = found.pop("tokenizer.ggml.tokens"), found.pop("tokenizer.ggml.token_type")
    assert (tokens, kinds.tolist(), kinds.dtype) == (["a", "b", "é"], [1, 1, 3], np.int32)
    assert found == {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.rope.freq_base": 10000.0,
        "general.file_type": gguf.LlamaFileType.MOSTLY_Q4_K_S,
        "general.quantization_version": 2,
    }


def test_pure_leaves_the_logits_in_the_type_asked_for(model, run, tmp_path):
    run(model, "--type", "Q4_K", "--pure")

    assert types(tmp_path / "out.gguf")["output.weight"] == "q4_K"


def test_embedding_that_makes_the_logits_too_takes_a_better_type(run, tmp_path):
    tied = write(tmp_path / "in.gguf", {"token_embd.weight": values("token_embd.weight")})

    run(tied, "--type", "Q2_K")

    assert types(tmp_path / "out.gguf") == {"token_embd.weight": "q6_K"}


def test_importance_changes_the_weights_it_names_and_no_other(model, importance, run, tmp_path):
    plain, weighted = tmp_path / "plain.gguf", tmp_path / "weighted.gguf"
    run(model, "--type", "Q4_K", out=plain)

    status, _, _ = run(model, "--type", "Q4_K", "--importance", importance, out=weighted)

    with open_gguf(plain) as before, open_gguf(weighted) as after:
        changed = {
            name
            for name in TENSORS
            if not np.array_equal(before.tensor_bytes(name), after.tensor_bytes(name))
        }
    assert status == 0
    assert changed == {"blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight"}


def test_number_of_threads_changes_nothing(model, importance, run, tmp_path):
    one, many = tmp_path / "one.gguf", tmp_path / "many.gguf"

    for count, out in ((1, one), (3, many)):
        run(model, "--type", "Q4_K", "--importance", importance, "--threads", count, out=out)

    assert one.read_bytes() == many.read_bytes()


def test_each_tensor_is_a_line_where_there_is_no_terminal(model, run):
    _, _, err = run(model, "--type", "Q4_K")

    lines = err.splitlines()
    assert len(lines) == len(TENSORS)
    assert lines[3] == (
        "[4/9] blk.0.attn_output.weight: f32 -> q5_0 (rows of 96 are not whole blocks of q4_K)"
    )


def test_json_has_a_record_for_each_tensor(model, run, tmp_path):
    _, out, _ = run(model, "--type", "Q4_K", "--json")

    result = json.loads(out)
    assert result["type"] == "q4_K"
    assert result["target"] == str(tmp_path / "out.gguf")
    assert result["bytes"] == sum(tensor["bytes"] for tensor in result["tensors"])
    assert result["tensors"][0] == {
        "name": "token_embd.weight",
        "ne": [WIDE, 12],
        "from": "f32",
        "to": "q4_K",
        "bytes": 12 * tp.Q4_K.size,
        "note": "",
        "not_finite": 0,
    }


def test_summary_ends_with_both_sizes(model, run, tmp_path):
    _, out, _ = run(model, "--type", "Q8_0")

    assert out.splitlines()[-1].startswith(f"{tmp_path / 'out.gguf'}: ")
    assert " of tensors, 414.1 KiB before, in " in out.splitlines()[-1]


# --- refusals -------------------------------------------------------------------------------


def test_file_that_is_there_is_replaced_only_by_force(model, run, tmp_path):
    (tmp_path / "out.gguf").write_bytes(b"mine")

    status, _, err = run(model, "--type", "Q4_K")
    forced, _, _ = run(model, "--type", "Q4_K", "--force", out=(other := tmp_path / "b.gguf"))

    assert (status, err) == (
        2,
        f"error: quantize: {tmp_path / 'out.gguf'} is there already; give --force to replace it\n",
    )
    assert (tmp_path / "out.gguf").read_bytes() == b"mine"
    assert forced == 0
    assert other.exists()


def test_force_replaces_the_file_that_is_there(model, run, tmp_path):
    (tmp_path / "out.gguf").write_bytes(b"mine")

    status, _, _ = run(model, "--type", "Q4_K", "--force")

    assert status == 0
    assert types(tmp_path / "out.gguf")["blk.0.attn_q.weight"] == "q4_K"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--type", "Q8_K"], "q8_K is not a type for weights; try q4_K, q6_K or q8_0"),
        (["--type", "i32"], "i32 is not a type for weights; try q4_K, q6_K or q8_0"),
        (["--type", "Q4_K_M"], "Q4_K_M is a mix of several types; give Q4_K\n"),
        (["--type", "Q9"], "dtype: unknown type 'Q9'"),
    ],
)
def test_type_that_files_cannot_have_is_refused(model, run, options, message):
    status, _, err = run(model, *options)

    assert status == 2
    assert err.startswith(f"error: quantize: {message}")


def test_type_that_the_package_does_not_know_is_refused(model, tmp_path):
    newer = replace(tp.Q8_0, id=4711)

    with open_gguf(model) as file:
        choices = [Choice(tensor, newer) for tensor in file.tensors.values()]
        with pytest.raises(tp.TensorplugError) as caught:
            encode(file, tmp_path / "out.gguf", choices, {})

    assert str(caught.value) == (
        "quantize: the installed package gguf does not know the type q8_0; "
        "pip install --upgrade gguf"
    )
    assert not (tmp_path / "out.gguf").exists()


def test_source_that_is_missing_is_refused(run, tmp_path):
    status, _, err = run(tmp_path / "none.gguf", "--type", "Q4_K")

    assert (status, err) == (
        2,
        f"error: quantize: there is no file or folder {tmp_path / 'none.gguf'}\n",
    )


def test_folder_that_is_missing_is_refused(model, run, tmp_path):
    status, _, err = run(model, "--type", "Q4_K", out=tmp_path / "none" / "out.gguf")

    assert (status, err) == (
        2,
        f"error: quantize: there is no folder {tmp_path / 'none'} to write into; make it\n",
    )


@pytest.mark.parametrize("which", ["model", "importance"])
def test_file_that_is_read_is_not_written_over(model, importance, run, which):
    target = model if which == "model" else importance
    before = target.read_bytes()

    status, _, err = run(model, "--type", "Q4_K", "--force", "--importance", importance, out=target)

    assert (status, err) == (
        2,
        f"error: quantize: {target} is a file to read; write to another one\n",
    )
    assert target.read_bytes() == before


def test_part_of_a_folder_is_not_written_over(tmp_path, run):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}")

    status, _, err = run(folder, "--type", "Q4_K", "--force", out=folder / "config.json")

    assert status == 2
    assert err.endswith("config.json is a file to read; write to another one\n")


def raw(path, *fields):
    """A file without tensors, of metadata that the package does not write: keys, types, bytes."""
    fields = [("general.architecture", 8, struct.pack("<Q", 5) + b"llama"), *fields]
    data = struct.pack("<4sIQQ", b"GGUF", 3, 0, len(fields))
    for key, kind, value in fields:
        data += struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "field",
    [
        ("general.alignment", 10, struct.pack("<Q", 64)),
        ("GGUF.version", 4, struct.pack("<I", 1)),
    ],
    ids=lambda field: field[0],
)
def test_metadata_that_the_package_does_not_read_is_one_line(tmp_path, run, field):
    file = raw(tmp_path / "in.gguf", field)

    status, _, err = run(file, "--type", "Q4_K")

    assert status == 1
    assert err.startswith(f"error: {file}: the package gguf, which copies metadata, cannot read")
    assert err.count("\n") == 1


def test_architecture_that_is_not_a_text_is_one_line(tmp_path, run):
    file = raw(tmp_path / "in.gguf")
    file.write_bytes(file.read_bytes().replace(b"llama", b"ll\xffma"))

    status, _, err = run(file, "--type", "Q4_K")

    assert (status, err) == (
        1,
        f"error: {file}: general.architecture is 'll\\udcffma'; convert the model again\n",
    )


def test_empty_lists_of_metadata_are_named(tmp_path, run):
    file = raw(tmp_path / "in.gguf", ("x.empty", 9, struct.pack("<IQ", 8, 0)))

    status, _, err = run(file, "--type", "Q4_K")

    assert status == 0
    assert "warning: metadata x.empty is an empty list, which is left out\n" in err


def test_weights_that_were_quantised_before_are_taken_only_when_asked(model, run, tmp_path):
    run(model, "--type", "Q8_0")

    refused, _, err = run(tmp_path / "out.gguf", "--type", "Q4_K", out=tmp_path / "b.gguf")
    taken, _, _ = run(
        tmp_path / "out.gguf", "--type", "Q4_K", "--requantize", out=tmp_path / "b.gguf"
    )

    assert refused == 1
    assert err.startswith(f"error: {tmp_path / 'out.gguf'}: has weights in q8_0, ")
    assert taken == 0
    assert types(tmp_path / "b.gguf")["blk.0.attn_q.weight"] == "q4_K"


def test_part_of_a_model_is_refused(run, tmp_path):
    part = write(tmp_path / "in.gguf", {"a.weight": values("output.weight")}, [("split.count", 3)])

    status, _, err = run(part, "--type", "Q4_K")

    assert (status, err) == (1, f"error: {part}: is one of 3 parts of a model; merge them first\n")


def test_value_that_is_no_number_is_refused_and_leaves_no_file(run, tmp_path):
    wild = values("output.weight")
    wild[3, 3] = np.nan
    model = write(tmp_path / "in.gguf", {"a.weight": wild})

    status, _, err = run(model, "--type", "Q4_K")

    assert status == 1
    assert err.startswith(f"error: {model}: tensor 'a.weight' holds values that are infinite")
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


def test_importance_of_another_model_is_refused(model, run, tmp_path):
    other = write(
        tmp_path / "importance.gguf",
        {
            "blk.0.attn_q.weight.in_sum2": np.ones((1, 64), np.float32),
            "blk.0.attn_q.weight.counts": np.float32([[3]]),
        },
    )

    status, _, err = run(model, "--type", "Q4_K", "--importance", other)

    assert status == 1
    assert err.splitlines()[-1] == (
        "error: quantize: importance of 1 x 64 values for 1 matrices with 256 columns, tensor "
        "'blk.0.attn_q.weight'; it is of another model"
    )


def test_file_without_importance_is_refused(model, run):
    status, _, err = run(model, "--type", "Q4_K", "--importance", model)

    assert status == 1
    assert err.startswith(f"error: {model}: holds no importance, ")


# --- what f16 cannot hold -------------------------------------------------------------------

KNOWN = frozenset(int(kind) for kind in gguf.GGMLQuantizationType)
BY_F16 = [
    t.name
    for t in tp.dtypes.DTYPES
    if can_encode(t, importance=True)
    and t.id in KNOWN
    and t.name not in ("f32", "f64", "bf16", "q8_1", "q8_K")
]


def extreme(tmp_path, largest):
    wild = values("blk.0.attn_q.weight")
    wild[5, 7] = largest
    return write(tmp_path / "in.gguf", {"a.weight": wild, "b.weight": values("output.weight")})


@pytest.mark.parametrize("largest", [65504.0, 1e6, -1e30, 3e38])
@pytest.mark.parametrize("name", BY_F16)
def test_values_that_are_lost_are_warned_of_by_tensor_and_only_they(tmp_path, name, largest):
    source, target = extreme(tmp_path, largest), tmp_path / "out.gguf"
    known = {"a.weight": np.ones((1, WIDE), np.float32), "b.weight": np.ones((1, WIDE), np.float32)}

    with open_gguf(source) as file:
        choices = tuple(choose(file, tp.dtypes.dtype(name), known=known, pure=True))
        lost = encode(file, target, choices, known)
    with open_gguf(target) as file:
        bad = {c.tensor.name: not_finite(file, c.tensor.name) for c in choices}

    assert lost == {tensor: count for tensor, count in bad.items() if count}


def encode(file, target, choices, known, *, done=lambda *_: None, strict=False):
    return quantize_file(
        *(file, target, choices[0].dtype, choices, known), threads=2, strict=strict, done=done
    )


def not_finite(file, name):
    tensor = file.tensors[name]
    found = np.empty((tensor.ne[1], tensor.ne[0]), np.float32)
    with np.errstate(all="ignore"):
        decode_rows(tensor.dtype, file.tensor_bytes(name).reshape(len(found), -1), found)
    return int(np.count_nonzero(~np.isfinite(found)))


LOST = (
    "tensor 'a.weight': 1 value is infinite or not a number in f16: they need scales beyond 65504, "
    "the largest number of f16; choose bf16 for this model\n"
)


def test_lost_values_are_a_warning_and_counted_in_json(run, tmp_path):
    status, out, err = run(extreme(tmp_path, 1e6), "--type", "f16", "--json")

    assert status == 0
    assert err.endswith(f"\nwarning: {LOST}")
    assert [t["not_finite"] for t in json.loads(out)["tensors"]] == [1, 0]


def test_lost_values_are_an_error_where_asked_for(run, tmp_path):
    status, _, err = run(extreme(tmp_path, 1e6), "--type", "f16", "--strict")

    assert (status, err.splitlines(keepends=True)[-1]) == (1, f"error: quantize: {LOST}")
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


# --- the file that is written, and the file that is read --------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="permissions and links of POSIX")
def test_force_keeps_a_link_and_the_permissions_of_the_file(model, run, tmp_path):
    (tmp_path / "folder").mkdir()
    real, link = tmp_path / "folder" / "real.gguf", tmp_path / "out.gguf"
    real.write_bytes(b"mine")
    real.chmod(0o600)
    link.symlink_to(real)

    status, _, _ = run(model, "--type", "Q4_K", "--force")

    assert (status, link.is_symlink(), real.stat().st_mode & 0o777) == (0, True, 0o600)
    assert types(real)["blk.0.attn_q.weight"] == "q4_K"


def test_an_architecture_without_a_name_stays_so(run, tmp_path):
    source = tmp_path / "in.gguf"
    writer = gguf.GGUFWriter(source, "")
    writer.add_key_value("general.architecture", "", gguf.GGUFValueType.STRING)
    writer.add_tensor("a.weight", values("output.weight"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    status, _, _ = run(source, "--type", "q8_0")

    with open_gguf(tmp_path / "out.gguf") as file:
        assert (status, file.metadata["general.architecture"]) == (0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows shortens no file that is mapped")
@pytest.mark.parametrize("left", [0, 1000, 100_000])
@pytest.mark.parametrize("name", ["q4_K", "f32"])
def test_a_source_that_is_shortened_meanwhile_is_an_error_and_leaves_no_file(
    model, tmp_path, name, left
):
    def shorten(*_):
        with model.open("r+b") as file:
            file.truncate(left)

    with open_gguf(model) as file:
        choices = tuple(choose(file, tp.dtypes.dtype(name), known={}, pure=True))
        with pytest.raises(tp.FormatError, match="was shortened while it was read"):
            encode(file, tmp_path / "out.gguf", choices, {}, done=shorten)

    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]

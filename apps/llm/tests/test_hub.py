"""`hf:ORG/REPO` in the place of a path, with a stand-in for the Hugging Face Hub that fails."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorplug.errors import FormatError, OptionError
from tensorplug_llm import Engine, load_model
from tensorplug_llm.models import find_model, name_of

from .gguf_files import write_model
from .hubs import COMMIT, Hub, environment, running, sha256

huggingface_hub = pytest.importorskip("huggingface_hub", minversion="2")
from tensorplug_llm import fetching, hub  # noqa: E402 - they need the library

REPO = "someone/Tiny-GGUF"
FILE = "tiny.Q4_K_M.gguf"
CONSTANTS = huggingface_hub.constants
MARK = b"general.architecture\x08\0\0\0"
URL = "/{repo_id}/resolve/{revision}/{filename}"
WAITING = len(fetching.PAUSES)
"""Tries without a new byte before a download ends."""


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    with running() as server:
        yield server


@pytest.fixture
def online(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub without repositories and faults, an empty cache, and no pauses."""
    server.__dict__.update(repos={}, requests=[], keys=[], faults=type(server.faults)())
    # What the variable HF_ENDPOINT does where it is set before the import.
    monkeypatch.setattr(CONSTANTS, "ENDPOINT", server.url)
    monkeypatch.setattr(CONSTANTS, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + URL)
    monkeypatch.setattr(CONSTANTS, "HF_URL_HOSTS", frozenset({"127.0.0.1"}))
    monkeypatch.setattr(CONSTANTS, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(CONSTANTS, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(fetching, "PAUSES", (0.0,) * WAITING)
    return server


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf").read_bytes()


@pytest.fixture
def tiny(online: Hub, data: bytes) -> Hub:
    """A hub with a repository with one model."""
    online.repos[REPO] = {"README.md": b"# Tiny", FILE: data}
    return online


@pytest.fixture
def small_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers are read in small pieces, so that files of tests are larger than their beginning."""
    monkeypatch.setattr(hub, "BEGINNING", 256)


def blobs(cache: str | None = None) -> list[Path]:
    folder = Path(cache or CONSTANTS.HF_HUB_CACHE)
    return sorted(folder.glob("models--*/blobs/*"))


def broken(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


# --- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model", ["hf:", "hf:tiny", "hf:a/b/c", "hf:a/b:", "hf:a/b@", "hf:../x:f", "hf:a/b:c@d@e f"]
)
def test_other_names_are_refused_with_the_form_of_a_name(model: str) -> None:
    with pytest.raises(OptionError, match="hf:ORG/REPO:FILE@REVISION"):
        find_model(model)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("hf:a/Tiny-GGUF", "Tiny-GGUF"),
        ("hf:a/Tiny-GGUF:q8_0", "Tiny-GGUF"),
        ("hf:a/b:sub/tiny.Q8_0.gguf@v1", "tiny.Q8_0"),
        ("/models/tiny.gguf", "tiny"),
        ("smollm2-135m", "smollm2-135m"),
    ],
)
def test_server_calls_a_model_by_a_short_name(model: str, name: str) -> None:
    assert name_of(model) == name


# --- what is chosen ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ("hf:a/b", "m-Q4_K_M.gguf"),
        ("hf:a/b:m-Q8_0.gguf", "m-Q8_0.gguf"),
        ("hf:a/b:q8_0", "m-Q8_0.gguf"),
        ("hf:a/b:Q8_0@v1", "m-Q8_0.gguf"),
        ("hf:a/b:other/x.gguf", "other/x.gguf"),
    ],
)
def test_file_is_named_by_path_or_type_and_q4_k_m_is_usual(model: str, file: str) -> None:
    files = ["README.md", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-IQ8_0.gguf", "other/x.gguf"]

    assert hub.choose(hub.parse(model), files) == file


@pytest.mark.parametrize(
    ("model", "files", "error"),
    [
        ("hf:a/b", ["README.md"], "no GGUF file"),
        ("hf:a/b", ["x-q2.gguf", "x-q3.gguf"], "2 GGUF files.*colon: x-q2.gguf, x-q3.gguf"),
        ("hf:a/b:q5", ["x-q2.gguf", "x-q3.gguf"], "no file 'q5'.*colon: x-q2.gguf, x-q3.gguf"),
        ("hf:a/b:q2", ["x-q2.gguf", "y-q2.gguf"], "2 files match.*colon: x-q2.gguf, y-q2.gguf"),
        ("hf:a/b", ["x-00001-of-00002.gguf"], "one piece.*llama-gguf-split --merge"),
    ],
)
def test_repository_without_one_such_file_is_listed(
    model: str, files: list[str], error: str
) -> None:
    with pytest.raises(OptionError, match=error):
        hub.choose(hub.parse(model), files)


# --- downloads -----------------------------------------------------------------------------------


def test_model_is_downloaded_once_into_the_cache_that_programs_share(
    tiny: Hub, data: bytes
) -> None:
    seen: list[tuple[int, int]] = []

    path = find_model(f"hf:{REPO}", lambda done, total: seen.append((done, total)))

    assert path.read_bytes() == data
    assert path.name == FILE
    assert [blob.name for blob in blobs()] == [sha256(data)]
    downloaded = len(tiny.downloads())
    assert find_model(f"hf:{REPO}:{FILE}") == path
    assert len(tiny.downloads()) == downloaded
    found = huggingface_hub.try_to_load_from_cache(REPO, FILE, cache_dir=CONSTANTS.HF_HUB_CACHE)
    assert found == str(path)


def test_progress_counts_up_to_the_size(tiny: Hub, data: bytes, small_beginning: None) -> None:
    seen: list[tuple[int, int]] = []

    find_model(f"hf:{REPO}", lambda done, total: seen.append((done, total)))

    assert seen == sorted(seen)
    assert seen[-1] == (len(data), len(data))


@pytest.mark.parametrize("revision", ["v1/first", COMMIT])
def test_revision_is_a_tag_or_a_commit(tiny: Hub, data: bytes, revision: str) -> None:
    assert find_model(f"hf:{REPO}@{revision}").read_bytes() == data


def test_commit_in_the_cache_is_found_without_a_request(tiny: Hub) -> None:
    path = find_model(f"hf:{REPO}@{COMMIT}")
    tiny.requests.clear()

    assert find_model(f"hf:{REPO}@{COMMIT}") == path
    assert tiny.requests == []


def test_token_is_sent_to_the_hub_and_not_to_the_host_that_it_names(
    tiny: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")

    find_model(f"hf:{REPO}")

    assert set(tiny.keys) == {
        (tiny.url.removeprefix("http://"), "Bearer hf_secret"),
        (tiny.store.removeprefix("http://"), None),
    }


def test_no_byte_is_downloaded_twice(tiny: Hub, data: bytes, small_beginning: None) -> None:
    find_model(f"hf:{REPO}")

    ranges = [tuple(map(int, str(r).removeprefix("bytes=").split("-"))) for r in tiny.downloads()]
    assert ranges[0] == (0, 255)
    assert [first for first, _ in ranges[1:]] == [last + 1 for _, last in ranges[:-1]]
    assert ranges[-1][1] == len(data) - 1


def test_connection_that_ends_half_way_is_resumed(tiny: Hub, data: bytes) -> None:
    tiny.faults.cut = [1000, 0, 5000]

    assert find_model(f"hf:{REPO}").read_bytes() == data
    assert [str(r).partition("-")[0] for r in tiny.downloads()] == [
        "bytes=0", "bytes=1000", "bytes=1000", "bytes=6000",
    ]  # fmt: skip


def test_download_that_ended_is_resumed_by_the_next_command(tiny: Hub, data: bytes) -> None:
    tiny.faults.cut = [1000] + [0] * (WAITING + 1)
    with pytest.raises(OptionError, match=f"ends at 1000 of {len(data)} bytes.*resume"):
        find_model(f"hf:{REPO}")
    tiny.requests.clear()

    assert find_model(f"hf:{REPO}").read_bytes() == data
    assert str(tiny.downloads()[0]).startswith("bytes=1000-")


def test_server_that_is_busy_for_a_while_is_asked_again(tiny: Hub, data: bytes) -> None:
    tiny.faults.statuses = [503, 429]

    assert find_model(f"hf:{REPO}").read_bytes() == data


def test_server_that_knows_no_ranges_is_read_again_from_the_start(
    tiny: Hub, data: bytes, small_beginning: None
) -> None:
    tiny.faults.ranges = False
    tiny.faults.cut = [1000]

    assert find_model(f"hf:{REPO}").read_bytes() == data


def test_download_with_a_wrong_byte_is_discarded(tiny: Hub, data: bytes) -> None:
    tiny.faults.damage = True
    with pytest.raises(OptionError, match=f"hash [0-9a-f]+, and {sha256(data)} was expected"):
        find_model(f"hf:{REPO}")
    assert [blob.stat().st_size for blob in blobs()] == [0]

    tiny.faults.damage = False
    assert find_model(f"hf:{REPO}").read_bytes() == data


@pytest.mark.parametrize(
    ("fault", "value", "error"),
    [
        ("listed", 1, "lists .* bytes, and .* for the file itself"),
        ("linked", -1, "lists .* bytes, and .* for the file itself"),
        ("sent", 7, "lists .* bytes and sends"),
        ("shift", 3, "answers a request for byte 0 with the range 'bytes 3-"),
        ("hash", "../../../etc/passwd", "no size or no hash"),
        ("statuses", [403], "status 403"),
        ("statuses", [503] * 99, "status 503.*run the command again"),
        ("cut", [0] * 99, "ends at 0 of .* bytes.*run the command again"),
    ],
)
def test_server_that_lies_is_refused(tiny: Hub, fault: str, value: Any, error: str) -> None:
    setattr(tiny.faults, fault, value)

    with pytest.raises(OptionError, match=error):
        find_model(f"hf:{REPO}")
    assert [blob for blob in blobs() if blob.suffix != ".incomplete"] == []


def test_size_that_is_too_large_everywhere_ends_with_the_bytes_there_are(tiny: Hub) -> None:
    tiny.faults.listed = tiny.faults.linked = 1 << 20

    with pytest.raises(OptionError, match="bytes and sends"):
        find_model(f"hf:{REPO}")


def test_small_file_with_the_hash_of_git_is_checked_too(tiny: Hub, data: bytes) -> None:
    import hashlib

    tiny.faults.hash = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()

    assert find_model(f"hf:{REPO}").read_bytes() == data


def test_full_disk_is_said_before_the_download(tiny: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda _: usage)

    with pytest.raises(OptionError, match=r"has room for 10; make room, or .* HF_HOME"):
        find_model(f"hf:{REPO}")
    assert tiny.downloads() == []


# --- what the beginning says ---------------------------------------------------------------------


def refused(tiny: Hub, data: bytes) -> str:
    """The error for a file; all of its weights were left where they are."""
    tiny.repos[REPO] = {FILE: data + bytes(1 << 20)}
    with pytest.raises(FormatError) as caught:
        find_model(f"hf:{REPO}")
    ends = [int(str(given).partition("-")[2]) for given in tiny.downloads()]
    assert max(ends) < len(data)
    return str(caught.value)


def test_unknown_architecture_is_refused_before_the_download(
    tiny: Hub, data: bytes, small_beginning: None
) -> None:
    name = (5).to_bytes(8, "little")
    wrong = data.replace(MARK + name + b"llama", MARK + name + b"rwkv7")

    error = refused(tiny, wrong)

    assert error.startswith(f"hf:{REPO}:{FILE}: architecture 'rwkv7' is not installed")


def test_unknown_tensor_type_is_refused_before_the_download(
    tiny: Hub, data: bytes, small_beginning: None
) -> None:
    name = b"output_norm.weight"
    place = data.index(name) + len(name) + 4 + 8
    wrong = data[:place] + (99).to_bytes(4, "little") + data[place + 4 :]

    assert "tensor 'output_norm.weight' is of the unknown type 99" in refused(tiny, wrong)


def test_tensor_that_is_missing_is_noticed_before_the_download(
    tiny: Hub, tmp_path: Path, small_beginning: None
) -> None:
    path = write_model(tmp_path / "x.gguf", tensors={"output_norm.weight": None})

    assert "'output_norm.weight' 32 is missing" in refused(tiny, path.read_bytes())


def test_file_that_is_not_gguf_is_refused_before_the_download(
    tiny: Hub, small_beginning: None
) -> None:
    assert "is not a GGUF file" in refused(tiny, b"PK\3\4" * 1000)


# --- without the Hub -----------------------------------------------------------------------------


def offline(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(CONSTANTS, "HF_HUB_OFFLINE", True)
    return "HF_HUB_OFFLINE is set"


def gone(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(CONSTANTS, "ENDPOINT", "http://127.0.0.1:9")
    return "http://127.0.0.1:9 cannot be reached"


Away = Callable[[pytest.MonkeyPatch], str]


@pytest.mark.parametrize("away", [offline, gone])
def test_cached_model_is_used_where_the_hub_is_away(
    tiny: Hub, away: Away, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = find_model(f"hf:{REPO}")
    reason = away(monkeypatch)

    assert find_model(f"hf:{REPO}") == path
    assert find_model(f"hf:{REPO}:q4_k_m") == path
    assert reason in caplog.text


@pytest.mark.parametrize("away", [offline, gone])
def test_model_outside_the_cache_needs_the_hub(
    tiny: Hub, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = away(monkeypatch)

    with pytest.raises(OptionError, match=f"{reason}.*not complete in the cache.*path of a GGUF"):
        find_model(f"hf:{REPO}")


@pytest.mark.parametrize(
    ("model", "error"),
    [
        ("hf:missing/nothing", "no repository missing/nothing.*private.*hf auth login"),
        (f"hf:{REPO}@v9", "no revision 'v9'"),
        (f"hf:{REPO}:q9", "no file 'q9'"),
    ],
)
def test_what_is_not_there_is_named(tiny: Hub, model: str, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        find_model(model)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((403, {"X-Error-Code": "GatedRepo"}, b""), "agree at http.*HF_TOKEN"),
        ((200, {}, b"<html>log in to the wifi"), "is not understood.*proxy"),
        ((200, {}, b"[]"), "is not understood"),
        ((200, {}, b"{}"), "is not understood"),
        ((500, {}, b""), "status 500.*not complete in the cache"),
        ((418, {}, b""), "status 418"),
    ],
)
def test_answer_without_a_list_of_files_is_explained(
    tiny: Hub, answer: tuple[int, dict[str, str], bytes], error: str
) -> None:
    tiny.faults.api = answer

    with pytest.raises(OptionError, match=error):
        find_model(f"hf:{REPO}")


def test_folder_that_cannot_be_written_is_named(
    tiny: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(CONSTANTS, "HF_HUB_CACHE", str(tmp_path / "file" / "hub"))

    with pytest.raises(OptionError, match=r"cannot be written.*HF_HOME"):
        find_model(f"hf:{REPO}")


def test_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorplug_llm.hub", raising=False)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)

    with pytest.raises(OptionError, match=r"pip install 'tensorplug-llm\[hf\]'"):
        find_model(f"hf:{REPO}")


# --- where a model stands ------------------------------------------------------------------------


def test_load_model_takes_the_name(tiny: Hub, cpu: Any) -> None:
    with load_model(f"hf:{REPO}", [cpu]) as model, Engine(model) as engine:
        assert np.isfinite(engine.score([1, 2, 3])).all()


def test_commands_take_the_name_and_the_variables_of_the_library(tiny: Hub, tmp_path: Path) -> None:
    code = "from tensorplug_llm_console import main; main()"
    options = ("--prompt", "hello", "--tokens", "2", "--device", "cpu?threads=1", "--json")
    command = [sys.executable, "-c", code, "generate", f"hf:{REPO}", *options]
    ran = subprocess.run(
        command,
        check=False,
        env={**os.environ, **environment(tiny, tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert ran.returncode == 0, ran.stderr
    assert len(json.loads(ran.stdout)["ids"]) == 2
    assert len(blobs(str(tmp_path / "home" / "hub"))) == 1

"""The examples of clients, run against a real server process."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .servers import ServerProcess
from .test_serve_tools import write_family
from .tool_templates import FAMILIES

FOLDER = Path(__file__).parents[3] / "examples" / "llm-clients"
KEY = "sk-secret"

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="examples are in the checkout only")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a key, of one tiny model that knows tools."""
    name, family = next(iter(FAMILIES.items()))
    path = write_family(tmp_path_factory.mktemp("model") / f"{name}.gguf", family)
    with ServerProcess(path, "--device", "cpu?threads=1", "--api-key", KEY) as server:
        yield server


def run(server: ServerProcess, *command: str | Path) -> str:
    environ = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": KEY}
    ran = subprocess.run(
        command,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("chat.py", r"(?s).+\n"),
        ("stream.py", r"(?s).*\n\[\d+ tokens\]\n"),
        ("many.py", r"(?s)Paris: .*\nRome: .*\nOslo: .*\nLima: .*\n"),
        ("schema.py", r"Colour\(name='(red|green|blue)', warm=(True|False)\)\n"),
        (
            "tools.py",
            r"(?s)weather\(\{\"city\": ?\"(Rome|Oslo)\"\}\): It rains in (Rome|Oslo)\.\n.*",
        ),
    ],
)
def test_example_with_the_official_package_prints_what_it_says(
    server: ServerProcess, name: str, printed: str
) -> None:
    assert re.fullmatch(printed, run(server, sys.executable, FOLDER / name))


def test_example_with_curl_prints_models_a_chat_and_a_stream(server: ServerProcess) -> None:
    assert shutil.which("curl"), "install curl"

    models, chat, *events = run(server, "sh", FOLDER / "curl.sh").strip().split("\n")

    (served,) = json.loads(models)["data"]
    assert json.loads(chat)["model"] == served["id"]
    assert [event for event in events if event][-1] == "data: [DONE]"


def test_every_example_is_named_in_the_readme() -> None:
    told = (FOLDER / "README.md").read_text()

    names = {path.name for path in FOLDER.iterdir()} - {"README.md"}
    assert names == set(re.findall(r"`([a-z]+\.(?:py|sh))`", told))

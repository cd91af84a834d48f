"""The examples run, and print what their page says."""

import os
import re
import secrets
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tensorplug as tp
from tensorplug_llm import find_model

FOLDER = Path(__file__).parents[1] / "examples"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```console\npython (.*?)\n```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
NOTES = {
    "bread.txt": "Bread is baked from flour, water and salt.\n\nA bicycle has two wheels.",
    "sky.txt": "The sun is a star, and planets go around it.\n\nRain falls from clouds.",
}
SAID = {"chat.py": "What is the capital of France?\n\n"}
PROGRAMS = sorted(
    str(path.relative_to(FOLDER))
    for path in FOLDER.rglob("*.py")
    if "llm-clients" not in path.parts
)
RAY_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
HAS_OPENCL = any(device.name == "opencl:0" for device in tp.devices())


def pattern(printed: str) -> str:
    """A regular expression for the text of the page: `…` stands for anything."""
    lines = printed.rstrip().splitlines(keepends=True)
    if not HAS_OPENCL:
        lines = [line for line in lines if not line.startswith("opencl")]
    return "".join(
        r"(?s:.*)" if line.rstrip() == "…" else re.escape(line) for line in lines
    ).replace(re.escape("…"), r".*")


@pytest.mark.parametrize(("command", "printed"), EXAMPLES, ids=[c for c, _ in EXAMPLES])
def test_example_prints_what_its_page_says(command: str, printed: str, tmp_path: Path) -> None:
    name, *arguments = shlex.split(command)
    if "opencl:0" in arguments and not HAS_OPENCL:
        pytest.skip("no OpenCL driver is installed")
    if name == "two_machines.py":
        pytest.importorskip("ray")
    (tmp_path / "notes").mkdir()
    for note, text in NOTES.items():
        (tmp_path / "notes" / note).write_text(text, encoding="utf-8")
    (tmp_path / "other.gguf").symlink_to(find_model("smollm2-135m"))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    done = subprocess.run(
        [sys.executable, str(FOLDER / name), *arguments],
        cwd=tmp_path,
        env={**RAY_TOKEN, **os.environ, "PATH": path},
        input=SAID.get(name, ""),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    assert re.fullmatch(pattern(printed), done.stdout.rstrip()), done.stdout


def test_kernel_of_the_custom_op_runs_on_every_device_that_compiles_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "custom_op" / "run.py")],
        capture_output=True,
        text=True,
        check=True,
    )

    told = re.findall(r"(\S+): computed by (\S+), (.*)", done.stdout)
    assert [device for device, _, _ in told] == [device.name for device in tp.devices()]
    assert all(device == by for device, by, _ in told)
    assert len({values for _, _, values in told}) == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_example_is_short(name: str) -> None:
    assert len((FOLDER / name).read_text(encoding="utf-8").splitlines()) < 80


def test_every_example_is_on_the_page() -> None:
    shown = {command.split()[0] for command, _ in EXAMPLES}

    parts = {name for name in PROGRAMS if name.startswith("custom_op/snake/")}
    assert shown == set(PROGRAMS) - parts

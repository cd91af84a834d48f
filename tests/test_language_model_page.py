"""`docs/language-model-on-your-backend.md`, carried out with the template of a backend."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensorplug.cli.scaffold import scaffold
from tensorplug_testing.distributions import write_distribution

from .pages import add, edit

PAGE = Path(__file__).parents[1] / "docs" / "language-model-on-your-backend.md"
BLOCKS = re.findall(r"```(console|diff|new|py|text)\n(.*?)```", PAGE.read_text(), re.DOTALL)
DONE_HERE = ("pip install", "tensorplug new-backend")
"""Commands in whose place the test puts the distribution on the path."""
MOST_WORDS = 1500


class Author:
    """Follows the page in a folder with the distribution `tensorplug-acme`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.distribution = scaffold("acme", folder / "tensorplug-acme").folder
        write_distribution(
            folder / "installed", "tensorplug-acme", entry_points={"acme": "tensorplug_acme.plugin"}
        )
        (folder / "tests").symlink_to(self.distribution / "tests")

    def run(self, program: str, *arguments: str) -> str:
        paths = self.distribution / "src", self.folder / "installed"
        done = subprocess.run(
            [program, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{program} {arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def type(self, command: str) -> None:
        """Enter a command."""
        if not command.startswith(DONE_HERE):
            program, *arguments = command.split()
            self.run(str(Path(sys.executable).with_name(program)), *arguments)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """What each program of the page printed, and what the page says."""
    author, printed, found = Author(tmp_path_factory.mktemp("author")), "", []
    for kind, text in BLOCKS:
        if kind == "console":
            for command in text.splitlines():
                author.type(command)
        elif kind == "py":
            printed = author.run(sys.executable, "-c", text)
        elif kind == "text":
            found.append((printed, text))
        else:
            (edit if kind == "diff" else add)(author.distribution, text)
    return found


def test_programs_of_the_page_print_what_it_says(outputs: list[tuple[str, str]]) -> None:
    assert len(outputs) > 1
    assert [printed for printed, _ in outputs] == [said for _, said in outputs]


def test_the_page_is_short() -> None:
    assert len(PAGE.read_text().split()) <= MOST_WORDS

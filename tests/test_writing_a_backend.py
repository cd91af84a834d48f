"""`docs/writing-a-backend.md`, carried out by the letter in an environment of its own."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tensorplug.cli.scaffold import scaffold

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "writing-a-backend.md"
BLOCK = re.compile(r"```(console|diff|py)\n(.*?)```", re.DOTALL)
MOST_STEPS = 20


@dataclass
class Author:
    """Someone who follows the page: what is typed, in which folder, and what comes out."""

    environment: object
    folder: Path
    steps: int = 0
    printed: dict[str, str] = field(default_factory=dict)

    def follow(self, kind: str, text: str) -> None:
        """Do what one block says."""
        if kind == "console":
            for command in text.splitlines():
                self.type(command)
        elif kind == "diff":
            self.edit(text)
        else:
            self.steps += 1
            self.run("python", "-c", text)

    def type(self, command: str) -> None:
        """Enter one command."""
        self.steps += 1
        program, *arguments = [word.strip("\"'") for word in command.split()]
        if program == "cd":
            self.folder = self.folder / arguments[0]
        elif program == "pip":
            self.install(arguments[1:])
        else:
            self.printed[command] = self.run(program, *arguments)

    def install(self, what: list[str]) -> None:
        """Install what a user would get from an index; here that is there already."""
        local = [w for w in what if w == "." or w.endswith(".whl")]
        if local:
            options = [w for w in what if w.startswith("--")]
            places = [str(self.folder / w) for w in local]
            self.environment.pip(
                *("install", "--no-index", "--no-deps", "--no-build-isolation"), *options, *places
            )

    def edit(self, text: str) -> None:
        """Replace the lines with a minus by those with a plus; a last line may be cut short."""
        self.steps += 1
        name, *lines = text.splitlines()
        path = self.folder / name.removeprefix("--- ")
        old, new = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        content = path.read_text()
        assert content.count(old) == 1, f"{path.name} has no single {old!r}"
        path.write_text(content.replace(old, new))

    def run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [str(self.environment.bin / program), *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{program} {arguments}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def author(environment, kit, tmp_path_factory):
    """The page followed from top to bottom."""
    environment.install(*kit)
    for tool in ("pytest", "build"):
        script = environment.bin / tool
        script.write_text(f"#!{environment.python}\nimport runpy\nrunpy.run_module('{tool}')\n")
        script.chmod(0o755)
    author = Author(environment, tmp_path_factory.mktemp("author"))
    for kind, text in BLOCK.findall(PAGE.read_text()):
        author.follow(kind, text)
    return author


@pytest.mark.long
def test_following_the_page_leads_to_a_certified_wheel(author):
    page = (author.folder / "certificate-acme-0.md").read_text()
    data = json.loads((author.folder / "certificate-acme-0.json").read_text())

    assert page.startswith("# acme:0 passes the conformance kit (tier full)\n")
    assert data["certified"]
    assert data["summary"]["ops"] == 8
    assert data["summary"]["failed"] == 0


@pytest.mark.long
def test_the_page_takes_few_steps(author):
    assert author.steps <= MOST_STEPS


@pytest.mark.long
def test_info_shows_the_device_of_the_new_backend(author):
    assert re.search(r"^acme:0 .*Acme card$", author.printed["tensorplug info"], re.MULTILINE)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """The distribution that `tensorplug new-backend template` writes."""
    return scaffold("template", tmp_path_factory.mktemp("new") / "template").folder


def test_device_of_the_new_backend_passes_the_kit(written, tmp_path):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tier", "smoke"]

    done = subprocess.run(
        [*command, str(written / "tests")],
        env={"PYTHONPATH": str(written / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "command", [("check", "--ignore", "I001"), ("format", "--check")], ids=" ".join
)
def test_ruff_finds_nothing_in_the_new_backend(written, command):
    pytest.importorskip("ruff")
    # Which imports are the distribution's own depends on the folder, so their order is not checked.
    config = ("--config", str(ROOT / "pyproject.toml"))

    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, *config, "."],
        capture_output=True,
        text=True,
        check=False,
        cwd=written / "src",
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_types_of_the_page_s_result_hold(author):
    assert not mypy_in(author.folder)


@pytest.mark.long
def test_types_of_the_new_backend_hold(written):
    assert not mypy_in(written)


def mypy_in(folder: Path) -> str:
    """What mypy finds in a backend, strictly."""
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "src"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    return done.stdout + done.stderr

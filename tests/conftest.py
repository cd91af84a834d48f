"""Wheels of every member, and environments of their own to install them into, without a network."""

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MEMBERS = {
    tomllib.loads(file.read_text())["project"]["name"]: file.parent
    for pattern in ("core", "testing", "simt", "emulator", "plugins/*", "apps/*")
    for file in sorted(ROOT.glob(f"{pattern}/pyproject.toml"))
}


@dataclass(frozen=True)
class Built:
    """What `python -m build` makes of one member."""

    sdist: Path
    wheel: Path
    """Built from the sdist, not from the checkout."""


QUICKLY = {"tensorplug-native": ("--config-setting", "cmake.build-type=Debug")}
"""Tests look at what wheels hold: without optimisation kernels compile in a sixth of the time."""


def build(folder: Path, out: Path, *what: str) -> list[Path]:
    """Build distributions of the project in `folder`; backends are taken from this environment."""
    command = [sys.executable, "-m", "build", "--no-isolation", *what, "--outdir", str(out)]
    subprocess.run([*command, str(folder)], check=True, capture_output=True, cwd=out.parent)
    return sorted(out.iterdir())


@pytest.fixture(scope="session")
def members() -> dict[str, Path]:
    """Folder of every member by distribution."""
    return MEMBERS


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    """The sdist of every member, and the wheel that was built from it."""
    made = {}
    for name, folder in MEMBERS.items():
        wheel, sdist = sorted(
            build(folder, tmp_path_factory.mktemp("dist") / "out", *QUICKLY.get(name, ())),
            key=lambda p: p.suffix != ".whl",
        )
        made[name] = Built(sdist, wheel)
    return made


@pytest.fixture(scope="session")
def wheels(built: dict[str, Built]) -> dict[str, Path]:
    """The wheel of every member by distribution."""
    return {name: files.wheel for name, files in built.items()}


@pytest.fixture(scope="session")
def kit(wheels: dict[str, Path]) -> list[Path]:
    """The wheels of the conformance kit and of what it needs."""
    return [wheels[name] for name in ("tensorplug", "tensorplug-cpu", "tensorplug-testing")]


@pytest.fixture(scope="session")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that this test run has installed, but nothing of tensorplug."""
    folder = tmp_path_factory.mktemp("dependencies")
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            ours = entry.name.lower().lstrip("_").startswith(("tensorplug", "editable"))
            if not ours and entry.suffix != ".pth":
                (folder / entry.name).symlink_to(entry)
    return folder


class Environment:
    """A virtual environment, used from a folder that is not the checkout."""

    def __init__(self, folder: Path, dependencies: Path) -> None:
        venv.create(folder, with_pip=False)
        self.bin = folder / "bin"
        self.python = str(self.bin / "python")
        self.elsewhere = folder / "elsewhere"
        self.elsewhere.mkdir()
        (self.site_packages / "dependencies.pth").write_text(f"{dependencies}\n")

    @property
    def site_packages(self) -> Path:
        """Where distributions are installed."""
        (folder,) = self.bin.parent.glob("lib/python*/site-packages")
        return folder

    def pip(self, *arguments: str | Path) -> None:
        """Run pip on this environment, without a network."""
        command = [sys.executable, "-m", "pip", "--python", self.python, "-q", *map(str, arguments)]
        subprocess.run(command, check=True, cwd=self.elsewhere)

    def install(self, *wheels: Path) -> None:
        """Install wheels; their dependencies are there already."""
        self.pip("install", "--no-index", "--no-deps", "--disable-pip-version-check", *wheels)

    def run(self, *command: str | Path, **environ: str) -> "subprocess.CompletedProcess[str]":
        """Run a program of the environment, with nothing of this process's settings but PATH."""
        program, *arguments = map(str, command)
        clean = {"PATH": os.environ["PATH"], "HOME": str(self.elsewhere), **environ}
        return subprocess.run(
            [str(self.bin / program), *arguments],
            check=False,
            capture_output=True,
            text=True,
            cwd=self.elsewhere,
            env=clean,
            timeout=120,
        )

    def output(self, *command: str | Path, **environ: str) -> str:
        """What a program prints; it must succeed and say nothing on stderr."""
        done = self.run(*command, **environ)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


@pytest.fixture(scope="module")
def environment(
    tmp_path_factory: pytest.TempPathFactory, dependencies: Path
) -> Iterator[Environment]:
    """An environment with no tensorplug in it."""
    return Environment(tmp_path_factory.mktemp("environment") / "venv", dependencies)

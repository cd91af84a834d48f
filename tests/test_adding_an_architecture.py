"""`docs/adding-an-architecture.md`, carried out with a distribution in a folder of its own."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tensorplug_testing.distributions import write_distribution

PAGE = Path(__file__).parents[1] / "docs" / "adding-an-architecture.md"
GROUP = "tensorplug_llm.architectures"
BLOCKS = re.findall(r"```(toml|py|text)\n(.*?)```", PAGE.read_text(), re.DOTALL)
PROJECT, MODULE, PROOF, PRINTED = (text for _, text in BLOCKS)


def write(folder: Path, project: str, entry_points: dict[str, str], module: str = MODULE) -> None:
    """Write a distribution with entry points for architectures and one module."""
    lines = [f"{name} = {value}" for name, value in entry_points.items()]
    name = next(iter(entry_points.values())).partition(":")[0]
    write_distribution(
        folder,
        project,
        entry_points="\n".join([f"[{GROUP}]", *lines]),
        modules={f"{name}.py": module},
    )


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that sees the distributions in a folder."""
    program = f"import sys; sys.path.append({str(folder)!r})\n{program}"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )


def test_page_adds_an_architecture_that_runs(tmp_path):
    project = tomllib.loads(PROJECT)["project"]
    write(tmp_path, project["name"], project["entry-points"][GROUP])

    done = run(PROOF, tmp_path)

    assert (done.stdout, done.stderr) == (PRINTED, "")


def test_opening_a_file_imports_its_architecture_only(tmp_path):
    write(tmp_path, "acme", {"acme": "acme_llm:ACME"}, "raise SystemExit('imported')")
    program = """
from tensorplug_llm.arch import architecture, architecture_names
architecture("llama")
print("acme" in architecture_names(), "acme_llm" in sys.modules)
print([name for name in sys.modules if name.startswith("tensorplug_llm.arch.gemma")])
"""

    assert run(program, tmp_path).stdout == "True False\n[]\n"


def test_importing_the_package_imports_no_architecture(tmp_path):
    program = """
from importlib.metadata import entry_points
import tensorplug_llm
found = entry_points(group="tensorplug_llm.architectures")
print(len(found) > 20, [entry.name for entry in found if entry.module in sys.modules])
"""

    assert run(program, tmp_path).stdout == "True []\n"


@pytest.mark.parametrize(
    ("offers", "message"),
    [
        (
            [("acme", "acme_llm:ACME", "import no_such_library")],
            "architecture 'acme' of acme 1.0 cannot be imported: No module named 'no_such_library'",
        ),
        (
            [("acme", "acme_llm:ACME", "ACME = 7")],
            "architecture 'acme' of acme 1.0: acme_llm:ACME is 7, not the Architecture of that "
            "name; its author must correct it",
        ),
        (
            [("acme", "acme_llm:ACME", ""), ("best", "best_llm:ACME", "")],
            "architecture 'acme' is offered by acme 1.0 and best 1.0; uninstall all but one",
        ),
    ],
    ids=["broken", "not one", "twice"],
)
def test_offer_that_cannot_be_used_is_an_error_that_names_it(offers, message, tmp_path):
    for project, value, module in offers:
        write(tmp_path, project, {"acme": value}, module)
    program = """
from tensorplug.errors import FormatError
from tensorplug_llm.arch import architecture
try:
    architecture("acme")
except FormatError as error:
    print(error)
"""

    assert run(program, tmp_path).stdout.strip() == message

"""The documents are true: programs run and print what the page says, and links exist."""

import datetime
import pkgutil
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tensorplug
import tensorplug.cli
import tensorplug_llm.cli
from tensorplug.ops.table import OPS
from tensorplug_testing.check import Outcome
from tensorplug_testing.cli.certificate import Certificate
from tensorplug_testing.run import Run
from tensorplug_testing.tiers import all_cases

ROOT = Path(__file__).parents[1]
FOLDERS = (
    *(".", "docs", "docs/*", "core", "testing", "simt", "emulator"),
    *("plugins/*", "apps/*", "benchmarks"),
    *("tests", "examples", "examples/*"),
)
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(f"{folder}/*.md"))
PROGRAM = re.compile(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", re.DOTALL)
FIRST_PAGES = (ROOT / "README.md", ROOT / "docs" / "start.md")
"""Programs of the other pages take a minute and a half: they are in tier T1."""
PROGRAMS = [
    pytest.param(
        program,
        printed,
        id=f"{page.relative_to(ROOT)}-{i}",
        marks=() if page in FIRST_PAGES else pytest.mark.long,
    )
    for page in PAGES
    for i, (program, printed) in enumerate(PROGRAM.findall(page.read_text(encoding="utf-8")))
]
LINKS = [
    pytest.param(page, link, id=f"{page.relative_to(ROOT)}-{link}")
    for page in PAGES
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    if "://" not in link
]
APPS = {"tensorplug": tensorplug.cli.app, "tensorplug-llm": tensorplug_llm.cli.app}
COMMANDS = {
    command
    for page in PAGES
    for block in re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    for command in re.findall(r"(tensorplug(?:-llm)? [a-z-]+)", block)
}
NAMED = sorted(
    (str(page.relative_to(ROOT)), name)
    for page in PAGES
    if page.name not in ("CHANGELOG.md", "from-ggml.md", "names.md")
    for name in set(
        re.findall(r"\btensorplug\w*(?:\.[A-Za-z_]\w*)+", page.read_text(encoding="utf-8"))
    )
)
"""Dotted names in pages. A changelog and `names.md` have former names, and `from-ggml.md` has a
test of its own."""
NOT_MODULES = {
    *("tensorplug.commands", "tensorplug_llm.architectures"),
    *("tensorplug.metal", "tensorplug_acme.plugin", "tensorplug_acme.kernels"),
    *("tensorplug_acme.memory", "tensorplug_ray.restart", "tensorplug_ray.serve"),
}
"""Groups of entry points, a logger, modules of the package that a page lets authors write, and
names that need a package that need not be installed."""
LONGEST = 1500
"""Words of a page, without its programs, unless it is one of REFERENCES."""
REFERENCES = {
    *("docs/from-ggml.md", "docs/glossary.md", "docs/names.md", "docs/ops.md"),
    *("docs/verification/oracle.md", "core/CHANGELOG.md"),
    *("benchmarks/README.md", "benchmarks/native.md"),
}
"""Pages to look something up in: tables, measurements, changes."""
COMPOSED = {"TENSORPLUG_CUDA_KERNELS", "TENSORPLUG_METAL_KERNELS"}
"""Variables whose names the code puts together."""
SOURCES = [
    (page, name)
    for page in PAGES
    if (page.parent / "src").is_dir() and page.name != "CHANGELOG.md"
    for name in sorted(set(re.findall(r"`([\w/]+\.py)`", page.read_text(encoding="utf-8"))))
]


@pytest.mark.parametrize(("program", "printed"), PROGRAMS)
def test_program_runs_and_prints_what_the_page_says(
    program: str, printed: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert not printed or done.stdout.rstrip() == printed.rstrip()


@pytest.mark.parametrize(("page", "link"), LINKS)
def test_link_leads_somewhere(page: Path, link: str) -> None:
    assert (page.parent / link).exists()


def test_dotted_names_in_pages_exist() -> None:
    missing = [(page, n) for page, n in NAMED if n not in NOT_MODULES and not resolves(n)]

    assert missing == []


def resolves(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_source_files_named_by_the_page_of_a_distribution_exist() -> None:
    missing = [
        (str(page.relative_to(ROOT)), name)
        for page, name in SOURCES
        if not (any(page.parent.rglob(name)) or (ROOT / name).exists())
    ]

    assert missing == []


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_command_of_a_page_exists(command: str) -> None:
    tool, subcommand = command.split()

    done = CliRunner().invoke(APPS[tool], [subcommand, "--help"])

    assert done.exit_code == 0, done.output


def words(page: Path) -> int:
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return sum(re.search(r"\w", word) is not None for word in text.split())


def test_no_page_is_long_except_references() -> None:
    long = {str(page.relative_to(ROOT)): words(page) for page in PAGES if words(page) > LONGEST}

    assert {name: count for name, count in long.items() if name not in REFERENCES} == {}


def test_page_of_variables_has_those_that_the_code_reads() -> None:
    code = {
        name
        for folder in ("core", "testing", "simt", "plugins/*", "apps/*")
        for file in ROOT.glob(f"{folder}/src/**/*.py")
        for name in re.findall(
            r"\bTENSORPLUG_[A-Z0-9_]*[A-Z0-9]\b", file.read_text(encoding="utf-8")
        )
    }

    page = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    told = set(re.findall(r"\bTENSORPLUG_[A-Z0-9_]*[A-Z0-9]\b", page))
    assert code - told == set()
    assert told - code - COMPOSED == set()


def test_figures_of_the_readme_are_those_of_the_measurements() -> None:
    figures = re.findall(r"[\d.]+ / [\d.]+", (ROOT / "README.md").read_text(encoding="utf-8"))

    measured = (ROOT / "benchmarks" / "native.md").read_text(encoding="utf-8")
    assert len(figures) == 6
    assert [pair for pair in figures if f" {pair} / " not in measured] == []


def test_counts_of_cases_in_the_readme_are_true() -> None:
    ours = [op for op in OPS.values() if not op.is_view and "." not in op.name]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"the {len(ours)} ops that compute" in readme
    assert len(list(all_cases())) > 11_000


CERTIFIED = re.findall(
    r"^(\| `(\S+)` \| (.+?) \| (.+?) \| (\d+) passed, (\d+) failed, (\d+) refused "
    r"\(tier (\w+), seed (\d+)\) \| (\d+) of \d+ \| ([\d-]+) \|)$",
    (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


def test_own_backends_are_in_the_table_of_certified_ones() -> None:
    assert {"cpu", "cpu@tensorplug-cpu"} <= {spec for _, spec, *_ in CERTIFIED}


@pytest.mark.parametrize("cells", CERTIFIED, ids=[row[1] for row in CERTIFIED])
def test_row_of_a_certified_backend_is_one_that_certify_writes(cells: tuple[str, ...]) -> None:
    row, spec, origin, hardware, passed, failed, refused, tier, seed, ops, date = cells
    names = [name for name, op in OPS.items() if not op.is_view][: int(ops)]
    done = [Outcome("", names[i % len(names)], "passed", "", 0, 0.0) for i in range(int(passed))]
    done += [Outcome("", "", "refused", "", 0, 0.0)] * int(refused)
    with tensorplug.open("cpu") as stream:
        info = replace(stream.device.info, description=hardware)

    written = Certificate(Run(spec, tier, int(seed), tuple(done)), spec, info, origin).row()

    assert int(failed) == 0
    assert written.rpartition(" | ")[0] == row.rpartition(" | ")[0]
    assert datetime.date.fromisoformat(date) <= datetime.datetime.now(datetime.UTC).date()


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 80


@pytest.mark.long
@pytest.mark.skipif(
    not any(device.name.startswith("opencl:") for device in tensorplug.devices()),
    reason="no OpenCL driver is installed",
)
def test_the_page_of_ops_is_what_devices_answer() -> None:
    program = "from make_ops_page import table; print(table())"

    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=True,
    )

    page = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")
    assert page[page.index("| op |") :] == done.stdout

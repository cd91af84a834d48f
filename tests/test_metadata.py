"""What the project files of all distributions say to people and to installers."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tensorplug.registry.spec import HINTS

ROOT = Path(__file__).parents[1]
WORKSPACE = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["workspace"]
FILES = sorted(f for p in WORKSPACE["members"] for f in ROOT.glob(f"{p}/pyproject.toml"))
PROJECTS = {
    project["name"]: project for project in (tomllib.loads(f.read_text())["project"] for f in FILES)
}
CORE = PROJECTS["tensorplug"]


def requirements(project):
    """All requirements of a project, with those of its extras."""
    extras = project.get("optional-dependencies", {}).values()
    return [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]


T1_ONLY = ("tensorplug-ray", "llm-tensorplug")
"""Distributions that the newest Python does not test: suite `python` runs tier T0."""


@pytest.mark.parametrize("name", PROJECTS)
def test_all_distributions_have_one_version(name):
    assert PROJECTS[name]["version"] == CORE["version"]


@pytest.mark.parametrize("name", PROJECTS)
def test_a_distribution_takes_siblings_of_its_own_minor_version(name):
    version = Version(CORE["version"])
    siblings = [r for r in requirements(PROJECTS[name]) if r.name in PROJECTS and r.name != name]

    for requirement in siblings:
        assert version in requirement.specifier
        assert Version(f"{version.major}.{version.minor + 1}") not in requirement.specifier


@pytest.mark.parametrize("name", PROJECTS)
def test_metadata_says_what_a_distribution_is_for(name):
    project = PROJECTS[name]
    pythons = [c.rpartition(" ")[2] for c in project["classifiers"] if "Python :: 3." in c]

    assert len(project["keywords"]) >= 4
    assert pythons == (["3.11"] if name in T1_ONLY else ["3.11", "3.15"])
    assert "Typing :: Typed" in project["classifiers"]
    assert (project["readme"], project["license-files"]) == ("README.md", ["LICENSE"])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_changes_of_a_distribution_begin_with_its_version(file):
    log = file.with_name("CHANGELOG.md").read_text(encoding="utf-8")

    headings = [line for line in log.splitlines() if line.startswith("## ")]

    assert headings[0].startswith(f"## {CORE['version']}")


def test_extra_all_installs_the_application_and_the_backends_of_any_linux_machine():
    (requirement,) = CORE["optional-dependencies"]["all"]

    assert Requirement(requirement).extras == {"cpu", "native", "opencl", "llm"}


@pytest.mark.parametrize("name", HINTS)
def test_hint_for_a_backend_names_an_extra_that_installs_it(name):
    extra = HINTS[name].partition("tensorplug[")[2].partition("]")[0]

    (requirement,) = CORE["optional-dependencies"][extra]

    assert Requirement(requirement).name == f"tensorplug-{name}"

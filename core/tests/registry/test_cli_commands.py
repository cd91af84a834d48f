"""Subcommands of other distributions: found without an import, loaded when they are called."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tensorplug.cli import app
from tensorplug.cli.commands import KNOWN
from tensorplug.registry.discovery import offers
from tensorplug_testing.distributions import write_distribution

GREET = """
from typing import Annotated

import typer

from tensorplug.errors import TensorplugError


def greet(name: str, *, loud: Annotated[bool, typer.Option("--loud", help="Shout.")] = False):
    \"\"\"Greet a person.\"\"\"
    typer.echo(f"Hello {name}{'!' if loud else '.'}")
    raise typer.Exit(3)
"""


def install(shelf, project, commands, modules):
    """Put a distribution with commands on the shelf."""
    lines = ["[tensorplug.commands]", *(f"{name} = {value}" for name, value in commands.items())]
    write_distribution(shelf.folder, project, entry_points="\n".join(lines), modules=modules)


@pytest.fixture
def acme(shelf):
    """A distribution with one command, `greet`."""
    install(shelf, "acme-tools", {"greet": "acme_tools:greet"}, {"acme_tools.py": GREET})


@pytest.fixture
def run():
    """Run a command line; gives the exit status and what was printed."""

    def call(*arguments):
        done = CliRunner().invoke(app, list(arguments))
        return done.exit_code, done.stdout, done.stderr

    return call


def row(help_text, name):
    return next(line for line in help_text.splitlines() if line.split()[:1] == [name])


def test_help_lists_a_foreign_command_with_its_distribution(acme, run):
    status, out, _ = run("--help")

    assert status == 0
    assert row(out, "greet").endswith("A command of acme-tools 1.0.")


def test_help_imports_no_foreign_command(acme, run):
    run("--help")

    assert "acme_tools" not in sys.modules


def test_foreign_command_gets_its_arguments_and_gives_its_status(acme, run):
    assert run("greet", "you", "--loud") == (3, "Hello you!\n", "")


def test_foreign_command_has_its_own_help(acme, run):
    status, out, _ = run("greet", "--help")

    assert status == 0
    assert "Usage: root greet [OPTIONS]" in out
    assert "Greet a person." in out
    assert "Shout." in out


def test_wrong_option_of_a_foreign_command_is_refused_by_its_name(acme, run):
    status, _, err = run("greet", "you", "--soft")

    assert status == 2
    assert "No such option: --soft" in err


def test_misspelt_foreign_command_is_guessed(acme, run):
    status, _, err = run("gret")

    assert status == 2
    assert "Did you mean 'greet'?" in err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nowhere_at_all", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("raise SystemExit(5)", "SystemExit: 5"),
        ("other = 1", "AttributeError: module 'acme_tools' has no attribute 'greet'"),
        ("greet = 7", "TypeError: its entry point names a value of type int"),
    ],
)
def test_broken_command_is_one_line_when_it_is_called(shelf, run, text, reason):
    install(shelf, "acme-tools", {"greet": "acme_tools:greet"}, {"acme_tools.py": text})

    assert run("greet", "you") == (
        1,
        "",
        f"error: greet: this command of acme-tools 1.0 cannot be loaded, {reason}; "
        "upgrade or uninstall acme-tools\n",
    )


def test_broken_command_leaves_help_and_other_commands_alone(shelf, run):
    install(shelf, "acme-tools", {"greet": "nowhere_at_all:greet"}, {})

    assert "A command of acme-tools 1.0." in run("--help")[1]
    assert run("ops", "--json")[0] == 0


def test_own_command_wins_over_a_foreign_one_of_its_name(shelf, run):
    install(shelf, "acme-tools", {"ops": "acme_tools:greet"}, {"acme_tools.py": GREET})

    status, out, _ = run("ops")

    assert status == 0
    assert "ops, " in out.splitlines()[-1]
    assert "acme-tools" not in run("--help")[1]


def test_of_two_distributions_with_a_command_the_first_by_name_wins(shelf, run):
    for project in ("acme-b", "acme-a"):
        module = project.replace("-", "_")
        source = f"def greet(): print('{project}')"
        install(shelf, project, {"greet": f"{module}:greet"}, {f"{module}.py": source})

    assert run("greet") == (0, "acme-a\n", "")


def test_distribution_that_cannot_be_read_hides_no_command(acme, shelf, run):
    damaged = shelf.folder / "damaged-1.0.dist-info"
    damaged.mkdir()
    (damaged / "entry_points.txt").write_text("[tensorplug.commands]\nno equals sign\n")

    assert run("greet", "you")[0] == 3


def test_offers_of_another_group_are_no_commands(shelf):
    shelf.add("acme-gpu")

    found = offers("tensorplug.commands", [str(shelf.folder)])

    assert found == []


@pytest.mark.parametrize("name", KNOWN)
def test_known_command_that_is_not_installed_names_its_extra(run, monkeypatch, name):
    monkeypatch.setattr("tensorplug.cli.commands.offers", lambda group: [])

    assert run(name, "--device", "cpu") == (
        1,
        "",
        f"error: {name}: this command is not installed; "
        f"pip install 'tensorplug[{KNOWN[name].extra}]'\n",
    )


def test_commands_of_our_distributions_are_known():
    ours = [o for o in offers("tensorplug.commands") if o.project.startswith("tensorplug-")]

    assert {offer.entry.name for offer in ours} == set(KNOWN)


def test_help_runs_no_code_of_plugins():
    program = (
        "import sys; from tensorplug.cli import app\n"
        "try: app(['--help'])\n"
        "finally: print([m for m in sys.modules if m.startswith('tensorplug_')], file=sys.stderr)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "[]\n")

"""Subcommands of other distributions, found by entry points of the group `tensorplug.commands`.

An entry point names a function whose annotated parameters become options (typer). The function is
imported when its command is called; `tensorplug --help` imports none of them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from tensorplug.cli.output import plain_errors
from tensorplug.errors import TensorplugError
from tensorplug.registry.candidate import describe
from tensorplug.registry.discovery import Offer, offers
from tensorplug.registry.guard import Failure, attempt
from tensorplug.text import printable

GROUP = "tensorplug.commands"
SETTINGS: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}
"""typer's settings for the command line and every subcommand: plain text, plain tracebacks."""


class Known(NamedTuple):
    """A command of another distribution that `tensorplug --help` describes without importing it."""

    extra: str
    """The extra of tensorplug that installs it."""
    words: str


KNOWN = {
    "bench": Known("native", "Measure which layout of weights is faster here."),
    "certify": Known("testing", "Run the whole conformance kit and write a report."),
    "kernels": Known("testing", "List the kernels that a device compiles."),
    "quantize": Known("quantize", "Write a model file with its weights in another type."),
    "simulate": Known("llm", "Say how fast a graph would run on other machines."),
    "support": Known("testing", "Print which types devices support for each op."),
    "test": Known("testing", "Run the conformance kit on a device."),
}


class Commands(TyperGroup):
    """The commands of this distribution, then commands of other distributions with other names."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands."""
        self._add_foreign()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; for a known one that is not installed, one that names its extra."""
        if cmd_name not in self.commands:
            self._add_foreign()
        if cmd_name not in self.commands and cmd_name in KNOWN:
            return LateCommand(cmd_name, "", partial(_not_installed, cmd_name))
        return super().get_command(ctx, cmd_name)

    def _add_foreign(self) -> None:
        for offer in offers(GROUP):
            name = offer.entry.name
            if name not in self.commands:
                ours = name in KNOWN and offer.project.startswith("tensorplug-")
                words = KNOWN[name].words if ours else f"A command of {offer.distribution}."
                self.commands[name] = LateCommand(name, printable(words), partial(load, offer))


class LateCommand(TyperCommand):
    """A subcommand that is imported when it is called."""

    def __init__(self, name: str, words: str, loaded: Callable[[], Any]) -> None:
        super().__init__(name, help=words)
        self._loaded = loaded

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> Any:
        """Import the command and return the context in which it parsed `args`."""
        with plain_errors("--traceback" in args):
            command = self._loaded()
        return command.make_context(info_name, args, *more, **extra)


def load(offer: Offer) -> Any:
    """Import the command of an entry point. Raises TensorplugError if that fails."""
    made = attempt(lambda: _command(offer.entry.name, offer.entry.load()))
    if isinstance(made, Failure):
        raise TensorplugError(
            f"{offer.entry.name}: this command of {offer.distribution} cannot be loaded, "
            f"{describe(made.error)}; upgrade or uninstall {offer.project}"
        ) from made.error
    return made


def _command(name: str, function: Any) -> Any:
    if not callable(function):
        raise TypeError(f"its entry point names a value of type {type(function).__name__}")
    app = typer.Typer(**SETTINGS)
    app.command(name)(function)
    return typer.main.get_command(app)


def _not_installed(name: str) -> Any:
    raise TensorplugError(
        f"{name}: this command is not installed; pip install 'tensorplug[{KNOWN[name].extra}]'"
    )

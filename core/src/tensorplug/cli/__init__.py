"""The command line `tensorplug`: installed backends, their state, and where graphs run."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from tensorplug.cli.commands import SETTINGS, Commands
from tensorplug.cli.diagnosis import diagnose
from tensorplug.cli.explain import explain as explain_graph
from tensorplug.cli.ops import op_list
from tensorplug.cli.output import Json, Traceback, plain_errors, show
from tensorplug.cli.scaffold import scaffold
from tensorplug.cli.survey import survey, survey_safely
from tensorplug.cli.tracing import NothingRecorded, record
from tensorplug.cli.welcome import welcome
from tensorplug.errors import OptionError
from tensorplug.registry import Registry

app = typer.Typer(
    help="Tensor graphs on all the hardware a machine has: what is installed, what works, and why.",
    cls=Commands,
    invoke_without_command=True,
    **{**SETTINGS, "add_completion": True},
)

Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, help="Time limit in seconds for each backend.")
]


@app.callback()
def without_command(context: typer.Context) -> None:
    """Tensor graphs on all the hardware a machine has: what is installed, what works, and why."""
    if context.invoked_subcommand is None:
        with plain_errors(traceback=False):
            typer.echo(welcome(Registry()))


@app.command()
def info(
    *,
    safe: Annotated[
        bool, typer.Option("--safe", help="Probe each backend in a separate process.")
    ] = False,
    timeout: Timeout = 30.0,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """List every backend with its state, and every device.

    Of a device it prints the memory and what it can do.
    """
    with plain_errors(traceback):
        registry = Registry()
        show(survey_safely(registry, timeout) if safe else survey(registry), json)


@app.command()
def doctor(
    *,
    device: Annotated[
        str | None, typer.Option("--device", help="Probe only this device, such as ray:0.")
    ] = None,
    timeout: Timeout = 30.0,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Probe every backend; exit with status 1 if one fails.

    Each backend is probed in a process of its own.
    """
    with plain_errors(traceback):
        diagnosis = diagnose(Registry(), timeout, device)
        show(diagnosis, json)
        raise typer.Exit(0 if diagnosis.healthy else 1)


@app.command()
def explain(
    *,
    file: Annotated[
        Path | None,
        typer.Argument(help="A graph file; `tensorplug-llm generate --save-graph` writes one."),
    ] = None,
    example: Annotated[bool, typer.Option("--example", help="Explain a small graph.")] = False,
    device: Annotated[
        list[str] | None,
        typer.Option("--device", help="A device, the preferred one first; repeat for more."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write an HTML page: graph, devices, copies, memory."),
    ] = None,
    ahead: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Arrange the work of all devices in stages that may run in parallel, looking this "
            "many nodes ahead. By default, only devices that support it do.",
        ),
    ] = None,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Show which device runs each node of a graph, and why."""
    with plain_errors(traceback):
        if (file is None) is not example:
            raise OptionError("explain: give either a FILE or --example")
        told = explain_graph(Registry(), file, device or (), ahead)
        if html is not None:
            title = "The example" if file is None else file.name
            page = told.to_html(f"{title} on {', '.join(told.devices)}")
            # Names of files need not be texts.
            html.write_text(page, encoding="utf-8", errors="backslashreplace")
        show(told, json)


@app.command(context_settings={"ignore_unknown_options": True})
def trace(
    *,
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND",
            help="A command, a .py file, or -m MODULE; put -- before it if it has options.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The trace file to write, for ui.perfetto.dev.")
    ] = Path("trace.json"),
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON; the command's own output goes to stderr.")
    ] = False,
    traceback: Traceback = False,
) -> None:
    """Run a command and write a trace of its schedules.

    Exits with the status of the command.
    """
    with plain_errors(traceback):
        try:
            recorded = record(command, out, quiet=json)
        except NothingRecorded as nothing:
            if traceback:
                raise
            typer.echo(f"error: {nothing}", err=True)
            raise typer.Exit(nothing.status or 1) from nothing
        if json:
            show(recorded, as_json=True)
        else:
            typer.echo(str(recorded), err=True)
        raise typer.Exit(recorded.status)


@app.command()
def ops(*, json: Json = False, traceback: Traceback = False) -> None:
    """List every op: sources, data types, parameters, formula."""
    with plain_errors(traceback):
        Registry().load_all()  # distributions may register their own ops
        show(op_list(), json)


@app.command()
def new_backend(
    *,
    name: Annotated[str, typer.Argument(help="Name of the backend, as in a device string.")],
    folder: Annotated[
        Path | None, typer.Option("--into", help="The folder to write; default: tensorplug-NAME.")
    ] = None,
    simt: Annotated[
        bool, typer.Option("--simt", help="Use tensorplug-simt: kernels for a GPU API.")
    ] = False,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Write a complete distribution of a new backend."""
    with plain_errors(traceback):
        show(scaffold(name, folder, template="template_simt" if simt else "template"), json)


def main() -> None:
    """Run the command line."""
    # The commands print what the log would contain, so the log is silenced.
    logging.getLogger("tensorplug").addHandler(logging.NullHandler())
    app()

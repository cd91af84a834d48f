"""The commands for authors of backends: `ops`, `test`, `certify`, `new-backend`."""

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from tensorplug.cli.ops import op_list
from tensorplug.cli.output import plain_errors, show
from tensorplug.cli.scaffold import scaffold
from tensorplug.errors import OptionError
from tensorplug.registry import Registry

Device = Annotated[str, typer.Option("--device", help="The device: opencl:0, cpu@tensorplug-cpu.")]
Tier = Annotated[str, typer.Option("--tier", help="How much: smoke, ci or full.")]
Seed = Annotated[int, typer.Option("--seed", help="Base of the seeds of all cases.")]
Jobs = Annotated[
    int,
    typer.Option(
        "-j",
        "--jobs",
        min=1,
        help="Processes to share cases out to; from 2 on a crash costs no more than its case.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Traceback = Annotated[
    bool,
    typer.Option("--traceback", envvar="TENSORPLUG_TRACEBACK", help="Show where an error is from."),
]


def ops(
    *,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a table op x backend, as in docs/ops.md.")
    ] = False,
    device: Annotated[
        list[str] | None, typer.Option("--device", help="A column of that table; repeat for more.")
    ] = None,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """List every op: sources, types, parameters, what it computes."""
    with plain_errors(traceback):
        if markdown and json:
            raise OptionError("ops: give either --json or --markdown")
        if device and not markdown:
            raise OptionError("ops: --device is a column of the table; give --markdown as well")
        if not markdown:
            # Distributions may bring ops of their own.
            Registry().load_all()
            show(op_list(), json)
            return
        from tensorplug_testing.cli.conformance import Choice, support
        from tensorplug_testing.support import as_markdown

        everything = Choice(tier="full")
        typer.echo(as_markdown([support(spec, everything) for spec in device or ["cpu"]]))


def run_kit(
    *,
    device: Device,
    op: Annotated[
        list[str] | None, typer.Option("-o", "--op", help="Cases of this op; repeat for more.")
    ] = None,
    pattern: Annotated[
        str, typer.Option("-p", "--pattern", help="Cases whose ids match a regular expression.")
    ] = "",
    mode: Annotated[
        str, typer.Option("--mode", help="test, perf (time it) or support (ask only).")
    ] = "test",
    tier: Tier = "ci",
    seed: Seed = 0,
    jobs: Jobs = 1,
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print one line for each case.")] = False,
    traceback: Traceback = False,
) -> None:
    """Run the conformance kit on a device; exit 1 if something failed."""
    with plain_errors(traceback):
        if json and csv:
            raise OptionError("give either --json or --csv")
        from tensorplug_testing.cli.conformance import Choice, run_mode

        choice = Choice(tuple(op or ()), pattern, tier, seed, jobs)
        result = run_mode(mode, device, choice)
        if csv:
            typer.echo(result.to_csv())
        else:
            show(result, json)
        raise typer.Exit(0 if getattr(result, "passed", True) else 1)


def kernels(
    *,
    device: Device,
    dump: Annotated[
        Path | None, typer.Option("--dump", help="A folder for the complete sources.")
    ] = None,
    tier: Tier = "full",
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """List the kernels that a device compiles for the kit's cases, and write their sources."""
    with plain_errors(traceback):
        from tensorplug_testing.cli.kernels import kernels as kernels_of

        found = kernels_of(device, tier)
        if dump is not None:
            found.dump(dump)
        show(found, json)


def certify(
    *,
    device: Device,
    folder: Annotated[
        Path, typer.Option("--output", "-O", help="Where the two reports are written.")
    ] = Path(),
    tier: Tier = "full",
    seed: Seed = 0,
    jobs: Jobs = 1,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Run the whole kit and write a one-page report (Markdown and JSON); exit 1 if it fails."""
    with plain_errors(traceback):
        from tensorplug_testing.cli.conformance import Choice
        from tensorplug_testing.cli.conformance import certify as certified

        folder.mkdir(parents=True, exist_ok=True)  # before minutes are spent
        certificate = certified(device, Choice(tier=tier, seed=seed, jobs=jobs))
        text = json_text.dumps(certificate.to_json(), indent=2)
        page, data = certificate.write(folder, text)
        typer.echo(text if json else f"{certificate}\n\nwritten to {page} and {data}")
        raise typer.Exit(0 if certificate.run.passed else 1)


def new_backend(
    *,
    name: Annotated[str, typer.Argument(help="Name of the backend, as in a device string.")],
    folder: Annotated[
        Path | None, typer.Option("--into", help="Where to write it; by default tensorplug-NAME.")
    ] = None,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Write a complete distribution of a new backend, to be filled in."""
    with plain_errors(traceback):
        show(scaffold(name, folder), json)

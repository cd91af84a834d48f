"""The commands `tensorplug test`, `certify`, `kernels` and `support`."""

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from tensorplug.cli.output import Json, Traceback, plain_errors, show
from tensorplug.errors import OptionError
from tensorplug_testing.cli.conformance import Choice, run_mode
from tensorplug_testing.cli.conformance import certify as certificate_of
from tensorplug_testing.cli.conformance import support as support_of
from tensorplug_testing.cli.kernels import kernels as kernels_of
from tensorplug_testing.support import as_markdown

Device = Annotated[str, typer.Option("--device", help="The device: opencl:0, cpu@tensorplug-cpu.")]
Ops = Annotated[
    list[str] | None, typer.Option("-o", "--op", help="Only cases of this op; repeatable.")
]
Tier = Annotated[str, typer.Option("--tier", help="Which cases: smoke, ci or full.")]
Seed = Annotated[int, typer.Option("--seed", help="The seed of the random data of all cases.")]
Jobs = Annotated[
    int,
    typer.Option(
        "-j",
        "--jobs",
        min=1,
        help="Number of worker processes; with 2 or more, a crash fails only its own case.",
    ),
]


def run_kit(
    *,
    device: Device,
    op: Ops = None,
    pattern: Annotated[
        str, typer.Option("-p", "--pattern", help="Only cases whose ids match this regex.")
    ] = "",
    mode: Annotated[
        str, typer.Option("--mode", help="test, perf (measure speed) or support (only ask).")
    ] = "test",
    tier: Tier = "ci",
    seed: Seed = 0,
    jobs: Jobs = 1,
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print one line for each case.")] = False,
    traceback: Traceback = False,
) -> None:
    """Run the conformance kit on a device; exit with status 1 if a case failed."""
    with plain_errors(traceback):
        if json and csv:
            raise OptionError("give either --json or --csv")
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
    op: Ops = None,
    dump: Annotated[
        Path | None, typer.Option("--dump", help="The folder into which to write the sources.")
    ] = None,
    tier: Tier = "full",
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """List the kernels that a device compiles for the kit's cases, and write their sources.

    The cases are single ops: what ops are fused into is listed in the README of tensorplug-simt.
    """
    with plain_errors(traceback):
        found = kernels_of(device, tier, tuple(op or ()))
        show(found, json)
        if dump is not None:
            typer.echo(found.dump(dump), err=json)


def certify(
    *,
    device: Device,
    folder: Annotated[
        Path, typer.Option("--output", "-O", help="The folder into which to write the reports.")
    ] = Path(),
    tier: Tier = "full",
    seed: Seed = 0,
    jobs: Jobs = 1,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Run the whole kit and write a one-page report (Markdown, JSON); exit 1 if a case failed."""
    with plain_errors(traceback):
        folder.mkdir(parents=True, exist_ok=True)  # a wrong folder fails before the long run
        certificate = certificate_of(device, Choice(tier=tier, seed=seed, jobs=jobs))
        text = json_text.dumps(certificate.to_json(), indent=2)
        page, data = certificate.write(folder, text)
        row = f"row for docs/compatibility.md:\n{certificate.row()}"
        typer.echo(text if json else f"{certificate}\n\nwritten to {page} and {data}\n{row}")
        raise typer.Exit(0 if certificate.run.passed else 1)


def support(
    *,
    device: Annotated[
        list[str], typer.Option("--device", help="A column of the table; repeat for more.")
    ],
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Print a Markdown table of the types that devices support for each op."""
    with plain_errors(traceback):
        everything = Choice(tier="full")
        found = [support_of(spec, everything) for spec in device]
        text = json_text.dumps([column.to_json() for column in found]) if json else None
        typer.echo(text or as_markdown(found))

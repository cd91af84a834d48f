"""The command `tensorplug quantize`: a GGUF file of a model with its weights in another type."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tensorplug.cli.output import Json, Traceback, plain_errors, show
from tensorplug.cli.progress import Progress, showing_progress
from tensorplug.dtypes import DTYPES, DType, dtype
from tensorplug.errors import DTypeError, OptionError
from tensorplug.text import human, printable, table
from tensorplug_cpu.quantize.choice import Choice, check_type, choose
from tensorplug_cpu.quantize.importance import read_importance
from tensorplug_cpu.quantize.source import open_source
from tensorplug_cpu.quantize.write import check_source, empty_lists, loss_of, write

Done = Callable[[Choice, int], None]


@dataclass(frozen=True, slots=True)
class Quantized:
    """What was written."""

    source: Path
    target: Path
    dtype: DType
    choices: Sequence[Choice]
    seconds: float
    lost: Mapping[str, int]
    """Values that were finite before and are not now, by tensor."""

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of all tensors, before and now."""
        return sum(c.tensor.nbytes for c in self.choices), sum(c.nbytes for c in self.choices)

    def to_json(self) -> dict[str, Any]:
        before, now = self.sizes
        return {
            "source": str(self.source),
            "target": str(self.target),
            "type": self.dtype.name,
            "bytes_before": before,
            "bytes": now,
            "seconds": round(self.seconds, 3),
            "tensors": [
                {
                    "name": c.tensor.name,
                    "ne": list(c.tensor.ne[: c.tensor.rank]),
                    "from": c.tensor.dtype.name,
                    "to": c.dtype.name,
                    "bytes": c.nbytes,
                    "note": c.note,
                    "not_finite": self.lost.get(c.tensor.name, 0),
                }
                for c in self.choices
            ],
        }

    def __str__(self) -> str:
        before, now = self.sizes
        counts = Counter((c.dtype.name, c.note) for c in self.choices)
        held: Counter[tuple[str, str]] = Counter()
        for choice in self.choices:
            held[choice.dtype.name, choice.note] += choice.nbytes
        rows = [
            (name, str(count), human(held[name, note]), note)
            for (name, note), count in counts.most_common()
        ]
        return "\n".join(
            [
                *table(("type", "tensors", "size", "note"), rows),
                "",
                f"{self.target}: {human(now)} of tensors, {human(before)} before, "
                f"in {self.seconds:.1f} s",
            ]
        )


def quantize(
    source: Annotated[
        Path, typer.Argument(metavar="IN", help="A GGUF file or a folder of Hugging Face.")
    ],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write.")],
    *,
    wanted: Annotated[str, typer.Option("--type", help="Type of the weights: Q4_K, Q6_K, Q8_0.")],
    importance: Annotated[
        Path | None,
        typer.Option("--importance", help="What matters, as llama-imatrix writes it (GGUF)."),
    ] = None,
    pure: Annotated[
        bool, typer.Option("--pure", help="No better type for the weights of the logits.")
    ] = False,
    requantize: Annotated[
        bool, typer.Option("--requantize", help="Take weights that were quantised before.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail where values are lost: beyond what f16 can hold.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")] = False,
    threads: Annotated[
        int, typer.Option("--threads", min=0, help="Threads; 0 for one per processor.")
    ] = 0,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Write a GGUF file of a model, with its weights in another type."""
    with plain_errors(traceback):
        _check_paths(source, target, importance, force=force)
        job = Job(
            source=source,
            target=target,
            dtype=_type_named(wanted),
            importance=importance,
            pure=pure,
            requantize=requantize,
            strict=strict,
            threads=threads,
        )
        show(run(job), json)


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done, as the command line says it."""

    source: Path
    target: Path
    dtype: DType
    importance: Path | None
    pure: bool
    requantize: bool
    strict: bool
    threads: int


def run(job: Job) -> Quantized:
    """Write the new file. Raises OptionError, FormatError, TensorplugError."""
    check_type(job.dtype, importance=job.importance is not None)
    known = read_importance(job.importance) if job.importance else {}
    begin = time.perf_counter()
    with open_source(job.source) as file:
        check_source(file, requantize=job.requantize)
        choices = tuple(
            choose(file, job.dtype, known=known, pure=job.pure, requantize=job.requantize)
        )
        threads = job.threads or os.cpu_count() or 1
        with showing_progress(f"to {job.dtype}", "weights") as shown:
            done = _counted(shown, choices) if shown.is_terminal else _lines(choices)
            lost = write(
                file,
                job.target,
                job.dtype,
                choices,
                known,
                threads=threads,
                strict=job.strict,
                done=done,
            )
        for key in empty_lists(file):
            words = f"metadata {key} is an empty list, which is left out"
            typer.echo(f"warning: {printable(words)}", err=True)
    for choice in choices:
        if choice.tensor.name in lost:
            words = loss_of(choice, lost[choice.tensor.name])
            typer.echo(f"warning: {printable(words)}", err=True)
    return Quantized(job.source, job.target, job.dtype, choices, time.perf_counter() - begin, lost)


def _type_named(name: str) -> DType:
    base, _, size = name.rpartition("_")
    if size.upper() in ("S", "M", "L") and base.lower() in {t.name.lower() for t in DTYPES}:
        raise OptionError(f"quantize: {name} is a mix of several types; give {base}")
    try:
        return dtype(name)
    except DTypeError as error:
        raise OptionError(f"quantize: {error}") from error


def _check_paths(source: Path, target: Path, importance: Path | None, *, force: bool) -> None:
    """Raise OptionError where a file is missing or in the way."""
    if not source.exists():
        raise OptionError(f"quantize: there is no file or folder {source}")
    if not target.parent.is_dir():
        raise OptionError(f"quantize: there is no folder {target.parent} to write into; make it")
    if target.is_dir():
        raise OptionError(f"quantize: {target} is a folder; name a file in it")
    if not target.exists():
        return
    read = [*source.iterdir()] if source.is_dir() else [source]
    if importance is not None:
        read.append(importance)
    if any(target.samefile(file) for file in read if file.exists()):
        raise OptionError(f"quantize: {target} is a file to read; write to another one")
    if target.is_file() and not force:
        raise OptionError(f"quantize: {target} is there already; give --force to replace it")


def _counted(shown: Progress, choices: Sequence[Choice]) -> Done:
    """Counts elements of all tensors for a progress."""
    total, so_far = sum(map(_elements, choices)), 0

    def done(_choice: Choice, elements: int) -> None:
        nonlocal so_far
        so_far += elements
        shown(so_far, total)

    return done


def _lines(choices: Sequence[Choice]) -> Done:
    """Prints a line once all elements of a tensor are done."""
    left = {choice.tensor.name: _elements(choice) for choice in choices}
    places = {choice.tensor.name: i for i, choice in enumerate(choices, 1)}

    def done(choice: Choice, elements: int) -> None:
        tensor = choice.tensor
        left[tensor.name] -= elements
        if left[tensor.name] > 0:
            return
        note = f" ({choice.note})" if choice.note else ""
        typer.echo(
            f"[{places[tensor.name]}/{len(choices)}] {tensor.name}: {tensor.dtype} -> "
            f"{choice.dtype}{note}",
            err=True,
        )

    return done


def _elements(choice: Choice) -> int:
    a, b, c, d = choice.tensor.ne
    return a * b * c * d

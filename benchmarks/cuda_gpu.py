"""Speed of the cuda backend, as JSON: figures, and their shares of what the GPU reaches at most.

Sections run one by one; `--only` chooses some, and a section that fails does not stop the others.
`--out` is written after each section, so that a time limit loses nothing that was measured. Without
a GPU each section says why it was not run. With `--record` nothing is measured: results in files of
earlier runs go into the table of `docs/verification/cuda.md`. A rehearsal (`--tiny`, over the
stand-in for CuPy) prints no figures.
"""

import argparse
import datetime
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from cuda_measure import ASKED, PRODUCTS, Bench, Figure, NotRun

import tensorplug as tp

SECTIONS = {
    "ceilings": ("cuda_ceilings", "section"),
    "model-q8_0": ("cuda_models", "synthetic", "q8_0"),
    "model-f16": ("cuda_models", "synthetic", "f16"),
    "matvec": ("cuda_products", "matvec"),
    "plans": ("cuda_plans", "plans"),
    "branches": ("cuda_plans", "branches"),
    "allocation": ("cuda_plans", "allocation"),
    "products": ("cuda_products", "products"),
    "gemma": ("cuda_models", "gemma"),
}
"""Modules, which import CuPy, their functions of a `Bench`, and what else these take."""
RECORDS = Path(__file__).resolve().parents[1] / "docs" / "verification" / "cuda.md"
TEMPORARY = Path(tempfile.gettempdir())
START, END = "<!-- cuda: written by benchmarks/cuda_gpu.py --record -->", "<!-- end of cuda -->"


def measure(bench: Bench, names: Sequence[str], tell: Callable[[dict[str, Any]], object]) -> int:
    """Run sections and `tell` the results so far after each; how many failed."""
    results: dict[str, Any] = {"date": today(), "tiny": bench.arguments.tiny, "sections": {}}
    failed = 0
    for name in names:
        start = time.perf_counter()
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            bench.check()
            results |= {"emulated": bench.emulated, "device": device()}
            module, function, *more = SECTIONS[name]
            found = getattr(import_module(module), function)(bench, *more)
        except NotRun as reason:
            found = {"not run": str(reason)}
        except Exception as error:  # noqa: BLE001 - whatever it is, the other sections go on
            traceback.print_exc()
            found, failed = {"failed": f"{type(error).__name__}: {error}"}, failed + 1
        took = time.perf_counter() - start
        results["sections"][name] = found | (
            {} if "not run" in found else {"seconds": round(took, 1)}
        )
        results["asked"] = bench.answers()
        tell(results)
    return failed


def today() -> str:
    """The date."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def device() -> str:
    """The GPU, its driver and the versions."""
    gpus = import_module("tensorplug_cuda.enumeration")
    known = ", ".join(f"{name} {value}" for name, value in gpus.features().items())
    return f"{gpus.devices()[0].description} ({known})"


def record(paths: Sequence[Path]) -> None:
    """Write the table from files of runs, of which later ones come after earlier ones."""
    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    for path in paths:
        results = json.loads(path.read_text(encoding="utf-8"))
        if results.get("emulated") or results["tiny"]:
            raise SystemExit(f"{path}: a rehearsal, of which nothing is recorded")
        asked = results["asked"]
        found |= {name: (results, asked[name]) for name in asked if "value" in asked[name]}
    lines = ["| what | target | found | ceiling | reached | on |", "|---|---|---|---|---|---|"]
    lines += [
        " | ".join(("", *row(name, *found.get(name, ({}, {}))), "")).strip() for name in ASKED
    ]
    text = RECORDS.read_text(encoding="utf-8")
    before, there, rest = text.partition(START)
    if not there or END not in rest:
        raise SystemExit(f"{RECORDS.name} has no comment {START}; add it and {END}")
    table = "\n".join(lines)
    RECORDS.write_text(f"{before}{START}\n{table}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def row(name: str, results: dict[str, Any], figure: dict[str, Any]) -> tuple[str, ...]:
    """Cells of one figure."""
    asked = ASKED[name]
    if not figure:
        return (asked.what, str(asked), "not run", "", "", "")
    value = f"{figure['value']} {figure['unit']}"
    ceiling = f"{figure['ceiling']:.4g} {figure['unit']}" if "ceiling" in figure else ""
    share = f"{figure['share']} ({value})" if "share" in figure else value
    note = f"; {figure['note']}" if "note" in figure else ""
    reached = "yes" if figure["reached"] else "no"
    return (
        asked.what,
        str(asked),
        share + note,
        ceiling,
        reached,
        f"{results['date']}, {results['device'].partition(' (')[0]}",  # without versions
    )


def parser() -> argparse.ArgumentParser:
    """What can be asked for."""
    found = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    found.add_argument("--only", default=",".join(SECTIONS), help="model is both of its kind")
    found.add_argument("--types", default="", help="types of weights in one string, or all")
    found.add_argument("--ways", default=PRODUCTS, help="values of TENSORPLUG_CUDA_PRODUCTS")
    found.add_argument("--folder", type=Path, default=TEMPORARY, help="for models")
    found.add_argument("--gemma", type=Path, help="file of Gemma 3 270M; else its packages")
    found.add_argument("--tiny", action="store_true", help="sizes of a rehearsal")
    found.add_argument("--out", type=Path, help="file for the JSON; printed without it")
    found.add_argument("--record", type=Path, nargs="*", help="files of earlier runs")
    return found


def main(words: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(words)
    if arguments.record is not None:
        record(arguments.record)
        return 0
    wanted = arguments.only.split(",")
    names = [name for name in SECTIONS if {name, name.partition("-")[0]} & set(wanted)]
    unknown = set(wanted) - {part for name in names for part in (name, name.partition("-")[0])}
    if unknown:
        parser().error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    tp.load_all()
    bench = Bench(arguments)

    def tell(results: dict[str, Any]) -> None:
        text = json.dumps(results, indent=1, default=lambda value: as_json(bench, value))
        if arguments.out is not None:
            arguments.out.write_text(text + "\n", encoding="utf-8")
        elif list(results["sections"]) == names:
            print(text)

    return int(measure(bench, names, tell) > 0)


def as_json(bench: Bench, value: object) -> Any:
    """A figure as JSON has it."""
    if isinstance(value, Figure):
        return bench.told(value)
    raise TypeError(f"{value!r} cannot be written as JSON")


if __name__ == "__main__":
    sys.exit(main())

"""The compiled kernels beside llama.cpp and ggml, in one run: JSON, and a picture of the ratios.

Models are read and continued in fresh processes, ours and theirs in turns; with each round goes
what the memory and the processor give at that moment (`ceilings.py`), of which shares are taken.
Products by type are those of `native_matmul.py`, tiny nodes those of `native_nodes.py`. Ratios are
medians of the rounds' ratios, above 1 where ours is faster, or takes less. llama.cpp comes from
llama-cpp-python in the Python that `--peer` names, ggml from TENSORPLUG_ORACLE or what is found.
"""

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterator
from html import escape
from math import prod
from pathlib import Path
from typing import Any

from beside_llama_cpp import HERE, Figures, output, parser_of, report

from tensorplug.gguf import open_gguf
from tensorplug_llm.models import find_model

FEWER_IS_BETTER = ("load_s", "peak_rss_mib")
NEAR = 100.0
"""Nanoseconds of a hop below which two processors count as near each other."""
EMBEDDING = "token_embd.weight"

Round = tuple[Figures, Figures, Figures]
"""What ours, theirs and the ceilings were."""


def weights(path: Path) -> tuple[int, int]:
    """Bytes of weights that a token reads, and multiplications with them, of the file at `path`."""
    with open_gguf(path) as file:
        tensors = file.tensors
        head = "output.weight" in tensors
        # An embedding of its own is only looked up.
        read = [t for name, t in tensors.items() if not (head and name == EMBEDDING)]
        return sum(t.nbytes for t in read), sum(prod(t.ne) for t in read if t.rank > 1)


def model_round(path: Path, threads: int, arguments: argparse.Namespace) -> Round:
    """One turn of each."""
    (ceilings,) = output([sys.executable, HERE / "ceilings.py", "--threads", threads])
    common = ("--repeat", arguments.repeat, "--threads", threads)
    device = ("--device", arguments.device)
    (ours,) = output(["tensorplug-llm", "bench", path, "--json", *device, *common])
    (theirs,) = output([arguments.peer, HERE / "llama_cpp_model.py", path, *common])
    mine = {name: ours[f"{name}_tokens_per_s"] for name in ("prefill", "decode")}
    return mine | {name: ours[name] for name in FEWER_IS_BETTER}, theirs, ceilings


def model_summary(path: Path, rounds: list[Round]) -> dict[str, Any]:
    """Medians, ratios, and shares of the ceilings."""
    summary: dict[str, Any] = {}
    for name in rounds[0][0]:
        sign = -1 if name in FEWER_IS_BETTER else 1
        ratios = [(ours[name] / theirs[name]) ** sign for ours, theirs, _ in rounds]
        summary[name] = {
            "ours": round(statistics.median(ours[name] for ours, _, _ in rounds), 2),
            "theirs": round(statistics.median(theirs[name] for _, theirs, _ in rounds), 2),
            "ratio": round(statistics.median(ratios), 2),
            "ratios": [round(ratio, 2) for ratio in ratios],
        }
    size, products = weights(path)
    shares = [ours["decode"] * size / 1e9 / limit["read"] for ours, _, limit in rounds]
    summary["decode"]["of memory"] = round(statistics.median(shares), 2)
    peaks = [ours["prefill"] * 2 * products / 1e9 / limit["int8"] for ours, _, limit in rounds]
    summary["prefill"]["of int8 peak"] = round(statistics.median(peaks), 2)
    places = ["near" if limit["hop_ns"] < NEAR else "far" for _, _, limit in rounds]
    return {**summary, "processors": places, "read GB/s": [c["read"] for _, _, c in rounds]}


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """All comparisons."""
    paths = {name: find_model(name) for name in arguments.models.split()}
    threads = [int(count) for count in arguments.threads.split()]
    rounds: dict[tuple[str, int], list[Round]] = {}
    for _ in range(arguments.rounds):
        for name, path in paths.items():
            for count in threads:
                done = rounds.setdefault((name, count), [])
                done.append(model_round(path, count, arguments))
                print(json.dumps({f"{name}, {count}": done[-1]}), file=sys.stderr, flush=True)
    results: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "device": arguments.device,
        "rounds": arguments.rounds,
    }
    for (name, count), done in rounds.items():
        label = f"{name}, {count} {'thread' if count == 1 else 'threads'}"
        results[label] = model_summary(paths[name], done)
    if arguments.products:
        results["nodes"] = output([sys.executable, HERE / "native_nodes.py"])
        results["products"] = output([sys.executable, HERE / "native_matmul.py"])
    return results


# --- the picture -------------------------------------------------------------------------------


def bars(results: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Labels and ratios, in the order of the results."""
    for label, part in results.items():
        if isinstance(part, dict):
            for name, figures in part.items():
                if isinstance(figures, dict):
                    yield f"{label}: {name}", figures["ratio"]
    for line in results.get("nodes", ()):
        yield f"{line['nodes']} tiny nodes, threads: {line['threads']}", line["ratio"]
    for line in results.get("products", ()):
        yield f"{line['type']} x {line['n']}", line["ratio"]


def picture(results: dict[str, Any]) -> str:
    """A bar for each ratio, and a line where both are equal: SVG."""
    rows = list(bars(results))
    left, unit, step = 300, 120, 18
    most = max(ratio for _, ratio in rows)
    width, height = left + unit * most + 60, step * (len(rows) + 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width:.0f}" height="{height}" fill="white"/>',
    ]
    for i, (label, ratio) in enumerate(rows):
        y = step * (i + 1)
        colour = "#2a7f62" if ratio >= 1 else "#b5482f"
        lines += [
            f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{left}" y="{y}" width="{unit * ratio:.0f}" height="14" fill="{colour}"/>',
            f'<text x="{left + unit * ratio + 4:.0f}" y="{y + 12}">{ratio:.2f}</text>',
        ]
    lines += [
        f'<path d="M{left + unit} {step - 6}V{height - step + 2}" stroke="black"/>',
        f'<text x="{left + unit}" y="{height - 4}" text-anchor="middle">as the peer</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = parser_of(__doc__, "cpu")
    parser.add_argument("--threads", default="2 1", help="several in one string")
    parser.add_argument("--svg", type=Path, help="where to draw the ratios")
    arguments = parser.parse_args()
    results = compare(arguments)
    if arguments.svg is not None:
        arguments.svg.write_text(picture(results), encoding="utf-8")
    report(results, arguments.out)


if __name__ == "__main__":
    main()

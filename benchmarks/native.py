"""The compiled kernels beside llama.cpp and ggml, in one run: JSON, and a picture of the ratios.

Models are read and continued in fresh processes, ours and theirs in turns; with each round goes
what the memory and the processor give at that moment (`ceilings.py`), of which shares are taken.
Products by type are those of `native_matmul.py`, tiny nodes those of `native_nodes.py`. Ratios are
medians of the rounds' ratios, above 1 where ours is faster, or takes less. llama.cpp comes from
llama-cpp-python in the Python that `--peer` names, ggml from TENSORPLUG_ORACLE or what is found.
"""

import argparse
import json
import math
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


WORDS = {"load_s": "time to load", "peak_rss_mib": "peak memory"}


def bars(results: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Labels and ratios, in the order of the results."""
    for label, part in results.items():
        if isinstance(part, dict):
            for name, figures in part.items():
                if isinstance(figures, dict):
                    yield f"{label}: {WORDS.get(name, name)}", figures["ratio"]
    for line in results.get("nodes", ()):
        yield f"{line['nodes']} tiny nodes, threads: {line['threads']}", line["ratio"]
    for line in results.get("products", ()):
        yield f"{line['type']} weights, rows of x: {line['n']}", line["ratio"]


ENDS = ((min, math.floor), (max, math.ceil))
LEFT, OCTAVE, STEP, TOP = 270, 110, 18, 52
"""Pixels of labels, of a factor of two, of a bar and of the head."""
TITLE = "Compiled kernels beside llama.cpp and ggml: times as fast, or times less taken"


def picture(results: dict[str, Any]) -> str:
    """A bar for each ratio, from the line where both are equal; factors of two apart: SVG."""
    rows = list(bars(results))
    low, high = (edge(math.log2(bound(r for _, r in rows))) for bound, edge in ENDS)
    low, high = min(low, -1), max(high, 1)
    width, height = LEFT + OCTAVE * (high - low) + 60, TOP + STEP * len(rows) + 12

    def place(ratio: float) -> float:
        return LEFT + OCTAVE * (math.log2(ratio) - low)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{escape(TITLE)}</text>',
    ]
    for octave in range(low, high + 1):
        x, shade = place(2.0**octave), "#444" if octave == 0 else "#ddd"
        lines += [
            f'<path d="M{x:.0f} {TOP - 8}V{height - 8}" stroke="{shade}"/>',
            f'<text x="{x:.0f}" y="{TOP - 12}" text-anchor="middle">{2.0**octave:g}</text>',
        ]
    for i, (label, ratio) in enumerate(rows):
        y, (start, end) = TOP + STEP * i, sorted((place(1), place(ratio)))
        colour = "#2a7f62" if ratio >= 1 else "#b5482f"
        lines += [
            f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{start:.0f}" y="{y}" width="{max(end - start, 1):.0f}" height="14" '
            f'fill="{colour}"/>',
            f'<text x="{end + 4:.0f}" y="{y + 12}">{ratio:.2f}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


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

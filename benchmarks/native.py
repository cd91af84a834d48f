"""The compiled kernels compared with llama.cpp and ggml: JSON, a table, a picture of ratios.

Models are read and continued in fresh processes, ours and theirs in turns; each round also
measures what memory and processor reach at that moment (`ceilings.py`); shares refer to that.
Synthetic models have names such as `1g-q4_K_M`, and are written on demand. Products by type are
those of `native_matmul.py`, tiny nodes those of `native_nodes.py`. Ratios are medians of the
rounds' ratios, above 1 where ours is faster, or takes less. llama.cpp comes from llama-cpp-python
in the Python that `--peer` names, ggml from TENSORPLUG_ORACLE or what is found.
"""

import argparse
import json
import math
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Iterator
from html import escape
from math import prod
from pathlib import Path
from typing import Any

from beside_llama_cpp import HERE, Figures, output, parser_of, report
from model_speeds import START, numbers
from synthetic_model import SHAPES, TYPES, write_model

from tensorplug.gguf import open_gguf
from tensorplug_llm.models import cache_folder, find_model

FEWER_IS_BETTER = ("load_s", "peak_rss_mib")
NEAR = 100.0
"""Nanoseconds of a hop below which two processors count as near each other."""
EMBEDDING = "token_embd.weight"
MODELS = "gemma3-270m smollm2-135m 1g-q4_K_M 1g-q8_0 1g-f16"
PROMPTS = "33 64 100 130 300 512"
DEPTHS = f"{START} 1540 3000"

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


def model_file(name: str, folder: Path) -> Path:
    """The file of a model; a synthetic one, such as `1g-q8_0`, is written to `folder` first."""
    shape, _, kind = name.partition("-")
    if shape in SHAPES and kind in TYPES:
        return write_model(folder / f"{name}.gguf", shape, kind)
    return find_model(name)


def model_round(path: Path, threads: int, turn: int, arguments: argparse.Namespace) -> Round:
    """One measurement of each program; the order changes from turn to turn, over several runs."""
    (ceilings,) = output([sys.executable, HERE / "ceilings.py", "--threads", threads])
    wanted = {name: getattr(arguments, name) for name in ("prompts", "depths", "tokens", "repeat")}
    common = [word for name, value in wanted.items() for word in (f"--{name}", value)]
    common += ["--threads", threads]
    device = ("--device", arguments.device)
    commands: list[list[object]] = [
        [sys.executable, HERE / "our_model.py", path, *device, *common],
        [arguments.peer, HERE / "llama_cpp_model.py", path, *common],
    ]
    step = -1 if turn % 2 else 1
    (first,), (second,) = (output(command) for command in commands[::step])
    ours, theirs = (first, second)[::step]
    return ours, theirs, ceilings


def model_summary(path: Path, rounds: list[Round]) -> dict[str, Any]:
    """Medians, ratios, and shares of the ceilings; of each figure, over the rounds that have it."""
    summary: dict[str, Any] = {}
    for name in dict.fromkeys(name for ours, _, _ in rounds for name in ours):
        sign = -1 if name in FEWER_IS_BETTER else 1
        pairs = [(ours[name], theirs[name]) for ours, theirs, _ in rounds if name in ours]
        ratios = [(ours / theirs) ** sign for ours, theirs in pairs]
        summary[name] = {
            "ours": round(statistics.median(ours for ours, _ in pairs), 2),
            "theirs": round(statistics.median(theirs for _, theirs in pairs), 2),
            "ratio": round(statistics.median(ratios), 2),
            "ratios": [round(ratio, 2) for ratio in ratios],
        }
    size, products = weights(path)
    first, longest = f"decode at {START}", f"prefill {most(summary)}"
    for name, key, share in (
        (first, "of memory", lambda ours, limit: ours[first] * size / limit["read"]),
        (longest, "of int8 peak", lambda ours, limit: 2 * ours[longest] * products / limit["int8"]),
    ):
        if name in summary:
            known = [(ours, limit) for ours, _, limit in rounds if name in ours and limit["int8"]]
            shares = [share(ours, limit) / 1e9 for ours, limit in known]
            summary[name][key] = round(statistics.median(shares), 2) if shares else None
    places = ["near" if limit["hop_ns"] < NEAR else "far" for _, _, limit in rounds]
    return {**summary, "processors": places, "read GB/s": [c["read"] for _, _, c in rounds]}


def most(names: Iterable[str]) -> int:
    """Tokens of the longest prompt."""
    return max((int(n.split()[1]) for n in names if n.startswith("prefill")), default=0)


def kept(file: Path | None) -> dict[tuple[str, int], list[Round]]:
    """Rounds of earlier runs by model and threads, from the lines of `file`."""
    rounds: dict[tuple[str, int], list[Round]] = {}
    if file is not None and file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            name, count, done = json.loads(line)
            rounds.setdefault((name, count), []).append(tuple(done))
    return rounds


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """All comparisons."""
    paths = {name: model_file(name, arguments.folder) for name in arguments.models.split()}
    rounds = kept(arguments.keep)
    for _ in range(arguments.rounds):
        for name, path in paths.items():
            for count in numbers(arguments.threads):
                earlier = rounds.setdefault((name, count), [])
                done = model_round(path, count, len(earlier), arguments)
                earlier.append(done)
                line = json.dumps([name, count, done])
                print(line, file=sys.stderr, flush=True)
                if arguments.keep is not None:
                    with arguments.keep.open("a", encoding="utf-8") as file:
                        file.write(line + "\n")
    results: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "device": arguments.device,
    }
    for (name, count), done in rounds.items():
        label = f"{name}, {count} {'thread' if count == 1 else 'threads'}"
        results[label] = model_summary(model_file(name, arguments.folder), done)
    if arguments.products:
        results["nodes"] = output([sys.executable, HERE / "native_nodes.py"])
        results["products"] = output([sys.executable, HERE / "native_matmul.py"])
    return results


# --- the table and the picture --------------------------------------------------------------------


WORDS = {"load_s": "time to load", "peak_rss_mib": "peak memory"}


def tables(results: dict[str, Any]) -> Iterator[str]:
    """Lines of Markdown: a table for each model, with what ours and theirs were and the ratios."""
    for label, part in results.items():
        if isinstance(part, dict):
            yield from (f"| {label} | ours | theirs | ratio | rounds |", "|---|---|---|---|---|")
            for name, figures in part.items():
                if isinstance(figures, dict):
                    spread = f"{min(figures['ratios'])} to {max(figures['ratios'])}"
                    values = [figures[key] for key in ("ours", "theirs", "ratio")]
                    yield f"| {' | '.join(map(str, [WORDS.get(name, name), *values, spread]))} |"
            yield ""


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
TITLE = "Compiled kernels next to llama.cpp and ggml: times as fast, or times less taken"


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
    parser.set_defaults(models=MODELS)
    parser.add_argument("--folder", type=Path, default=cache_folder(), help="of synthetic models")
    parser.add_argument("--prompts", default=PROMPTS, help="tokens of prompts, in one string")
    parser.add_argument("--depths", default=DEPTHS, help="tokens before those generated")
    parser.add_argument("--tokens", type=int, default=32, help="tokens to generate")
    parser.add_argument("--threads", default="2 1", help="several in one string")
    parser.add_argument(
        "--keep",
        type=Path,
        help="file of rounds, to which more are added: for a measurement in pieces, which may "
        "differ in prompts and depths; --rounds 0 only adds up",
    )
    parser.add_argument("--svg", type=Path, help="where to draw the ratios")
    arguments = parser.parse_args()
    results = compare(arguments)
    if arguments.svg is not None:
        arguments.svg.write_text(picture(results), encoding="utf-8")
    print("\n".join(tables(results)), file=sys.stderr)
    report(results, arguments.out)


if __name__ == "__main__":
    main()

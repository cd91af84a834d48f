"""How many barriers a model's graphs need, per node, on a device that runs nodes in parallel.

The graph of one decoded token, or with `--tokens` of a prompt, is planned for `--device`, with and
without fusion: in the order of the program (0 ahead), and with a look ahead. Lines of JSON;
`--html FILE` explains the last plan, with its stages as bands; `--svg FILE` draws only the stages.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tensorplug as tp
from tensorplug.planning.stages import Stage, Work, label, nodes_of
from tensorplug.running import Explanation
from tensorplug.text import human
from tensorplug_llm import find_model, load_model
from tensorplug_llm.testing import LoneText

AHEAD = (0, 4, 16, 64, 256)
CONTEXT = 256
"""Tokens that the cache holds."""

ACROSS, STEP, BOX, TALL, GAP, TOP = 40, 26, 20, 13, 3, 34
"""Stages in a line of the picture; pixels of a stage, of work, between two, and of the head."""
KINDS = {
    "products": ("#2f66c8", ("mul_mat",)),
    "attention": ("#a8327f", ("flash_attn_ext", "soft_max")),
    "writes to the cache": ("#c96f12", ("set_rows", "cpy")),
    "norms, with what is fused": ("#24804a", ("norm", "rms_norm")),
    "other": ("#8894a2", ()),
}
"""Colours of work, by the ops in it: the first that fits."""


@contextmanager
def graph_of(model: str, backend: tp.Backend, tokens: int) -> Iterator[tp.Graph]:
    """The graph that a model plans for a prompt of `tokens` tokens, with its weights and cache."""
    found: list[tp.Graph] = []
    schedule = tp.Scheduler.schedule

    def recorded(scheduler: tp.Scheduler, graph: Any, **options: Any) -> Any:
        found.append(graph)
        return schedule(scheduler, graph, **options)

    with (
        load_model(find_model(model), [backend], weights="mapped") as loaded,
        LoneText(loaded, CONTEXT) as text,
    ):
        with patch.object(tp.Scheduler, "schedule", recorded):
            text.prefill([1] * tokens)
        yield found[-1]


def measured(
    graph: tp.Graph, backend: tp.Backend, ahead: int, *, fuse: bool
) -> tuple[dict[str, Any], Explanation, list[Stage]]:
    """Counts of the splits of a plan, what explains it, and its stages."""
    with tp.Scheduler([backend], ahead=ahead) as scheduler:
        schedule = scheduler.schedule(graph, fuse=fuse)
        parts = [split.stages for split in schedule.splits if split.stages]
        told = schedule.explain()
    stages = [stage for part in parts for stage in part]
    nodes = sum(len(nodes_of(work)) for stage in stages for work in stage)
    barriers = len(stages) - len(parts)
    found = {
        "fused": fuse,
        "ahead": ahead,
        "nodes": nodes,
        "work": sum(map(len, stages)),
        "barriers": barriers,
        "barriers_per_node": round(barriers / nodes, 3),
        "widest": max(map(len, stages)),
        "compute_memory": human(sum(told.memory.values())),
    }
    return found, told, stages


def picture(stages: Sequence[Stage], title: str) -> str:
    """The stages from left to right, line by line; what stands in one column may run at once."""
    lines = [stages[i : i + ACROSS] for i in range(0, len(stages), ACROSS)]
    tops = [TOP]
    for line in lines:
        tops.append(tops[-1] + max(map(len, line)) * (TALL + GAP) + 14)
    boxes = [
        box(work, 8 + column * STEP, top + row * (TALL + GAP))
        for top, line in zip(tops, lines, strict=False)
        for column, stage in enumerate(line)
        for row, work in enumerate(stage)
    ]
    keys = [
        f'<rect class="k{i}" x="{8 + i * 200}" y="18" width="10" height="10"/>'
        f'<text x="{22 + i * 200}" y="27">{name}</text>'
        for i, name in enumerate(KINDS)
    ]
    colours = "".join(f".k{i}{{fill:{c}}}" for i, (c, _) in enumerate(KINDS.values()))
    wide = 16 + ACROSS * STEP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tops[-1]}">'
    style = f"<style>text{{font:11px sans-serif;fill:#5d6875}}{colours}</style>"
    ground = f'<rect width="{wide}" height="{tops[-1]}" fill="#fff"/>'
    name = f'<text x="8" y="12">{title}</text>'
    return "\n".join([head, style, ground, name, *keys, *boxes, "</svg>", ""])


def box(work: Work, x: int, y: int) -> str:
    ops = {node.op for node in ((work,) if isinstance(work, tp.Tensor) else work.nodes)}
    kind = next(i for i, (_, of) in enumerate(KINDS.values()) if not of or ops & set(of))
    return (
        f'<rect class="k{kind}" x="{x}" y="{y}" width="{BOX}" height="{TALL}">'
        f"<title>{label(work)}</title></rect>"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="gemma3-270m", help="a GGUF file, or a model's name")
    parser.add_argument("--device", default="cpu", help="where it lies, and what is fused")
    parser.add_argument("--tokens", type=int, default=1, help="tokens of the pass")
    parser.add_argument("--html", type=Path, help="where to explain the last plan")
    parser.add_argument("--svg", type=Path, help="where to draw the stages of the last plan")
    given = parser.parse_args()
    tp.load_all()
    with (
        tp.open(given.device) as backend,
        graph_of(given.model, backend, given.tokens) as graph,
    ):
        for fuse in (False, True):
            for ahead in AHEAD:
                found, told, stages = measured(graph, backend, ahead, fuse=fuse)
                print(json.dumps(found))
    what = "one token" if given.tokens == 1 else f"{given.tokens} tokens"
    title = f"{given.model}, {what}, as {given.device} fuses it: {len(stages) - 1} barriers among "
    title += f"{found['work']} pieces of work of {found['nodes']} nodes"
    if given.html is not None:
        given.html.write_text(told.to_html(title), encoding="utf-8")
    if given.svg is not None:
        given.svg.write_text(picture(stages, title), encoding="utf-8")


if __name__ == "__main__":
    main()

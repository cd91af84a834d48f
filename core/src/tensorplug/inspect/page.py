"""The HTML page of a schedule: summary, chart over time, refusals, and the list of nodes."""

from collections import Counter
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from tensorplug.inspect import lanes
from tensorplug.inspect.chart import chart
from tensorplug.text import counted, human

if TYPE_CHECKING:
    from tensorplug.planning.explain import CopyRow, Explanation, NodeRow

COLOURS = 8
"""The number of different colours; device number 8 has the colour of device 0."""
NAMED = 4
"""The most nodes that are named for one reason."""
COLUMNS = ((5, 6), (8, 26), (4, 16), (8, 22), (10, 40))
"""Least and greatest widths, in characters, of the columns: number, name, op, result, cause."""


def page(told: "Explanation", title: str) -> str:
    """Return a self-contained HTML page that shows `told`."""
    colours = {device: f"d{i % COLOURS}" for i, device in enumerate(told.devices)}
    rows, tops, height = _rows(told, colours)
    reads = [row.reads for row in told.nodes]
    of_nodes = [colours[row.device] for row in told.nodes]
    return Template(_part("page.html")).substitute(
        title=escape(title),
        css=_part("page.css"),
        js=_part("page.js"),
        summary=escape("; ".join(told.summary)),
        devices="".join(_device(told, device, colour) for device, colour in colours.items()),
        chart=chart(told, colours),
        notes=_notes(told),
        rows="\n".join(rows),
        lanes=lanes.drawn(reads, tops, of_nodes, height),
        lanes_width=lanes.width(lanes.lanes(reads)),
        columns=_columns(told),
    )


def _part(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _device(told: "Explanation", device: str, colour: str) -> str:
    nodes = sum(row.device == device for row in told.nodes)
    splits = told.splits.count(device)
    counts = f"{counted(nodes, 'node')} in {counted(splits, 'split')}" if nodes else "no nodes"
    return f'<span class="{colour}"><i></i><b>{escape(device)}</b> {counts}</span>'


# --- reasons -----------------------------------------------------------------------------------


def _notes(told: "Explanation") -> str:
    """The reasons of refusals and of groups that were not fused, each with its nodes."""
    refused: dict[str, list[int]] = {}
    for number, row in enumerate(told.nodes):
        for reason in row.refusals.values():
            refused.setdefault(reason, []).append(number)
    unfused = Counter(f"{row.pattern}: {row.reason}" for row in told.unfused)
    if not refused and not unfused:
        return ""
    lines = [
        f'<tr><td class="n">{len(numbers)}</td><td>refused by {escape(reason)}</td>'
        f"<td>{_links(told, numbers)}</td></tr>"
        for reason, numbers in sorted(refused.items(), key=lambda item: -len(item[1]))
    ]
    lines += [
        f'<tr><td class="n">{count}</td><td>not fused as {escape(reason)}</td><td></td></tr>'
        for reason, count in unfused.most_common()
    ]
    return "\n".join(["<section><h2>Why not</h2><table>", *lines, "</table></section>"])


def _links(told: "Explanation", numbers: list[int]) -> str:
    named = [
        f'<a href="#n{n}" data-i="{n}">{escape(told.nodes[n].node)}</a>' for n in numbers[:NAMED]
    ]
    more = [f"{len(numbers) - NAMED} more"] if len(numbers) > NAMED else []
    return ", ".join([*named, *more])


# --- nodes -------------------------------------------------------------------------------------


def _rows(told: "Explanation", colours: dict[str, str]) -> tuple[list[str], dict[int, int], int]:
    """The rows of the list as HTML, the y coordinate of each node's row, the height in pixels."""
    copies: dict[int, list[CopyRow]] = {}
    for copy in told.copies:
        copies.setdefault(copy.split, []).append(copy)
    bands = _bands(told)
    rows: list[str] = []
    tops: dict[int, int] = {}
    lines, split = 0, -1
    for number, row in enumerate(told.nodes):
        colour = colours[row.device]
        if row.split != split:
            split, before = row.split, copies.get(row.split, [])
            rows.append(f"{'</div>' if split else ''}<div>{_head(told, split, colour, before)}")
            rows += [_from(copy, colours) for copy in before]
            lines += 1 + len(before)
        tops[number] = lines * lanes.ROW
        rows.append(_node(told, number, row, f"{colour}{bands.get(number, '')}"))
        lines += 1
    return [*rows, "</div>"] if rows else [], tops, lines * lanes.ROW


def _bands(told: "Explanation") -> dict[int, str]:
    """CSS classes of the nodes' rows: which stage, whether it has other work, after a barrier."""
    found = {}
    for number, stage in enumerate(told.stages):
        kind = " odd" if number % 2 else " even"
        many = " many" if len(stage.work) > 1 else ""
        for node in range(stage.first, stage.last + 1):
            found[node] = f"{kind}{many}"
        found[stage.first] += " barrier" if stage.first else ""
    return found


def _head(told: "Explanation", split: int, colour: str, copies: "list[CopyRow]") -> str:
    count = counted(sum(row.split == split for row in told.nodes), "node")
    brought = f", {human(sum(c.bytes for c in copies))} copied here" if copies else ""
    barriers = told.barriers(split)
    brought += f", {barriers}" if barriers else ""
    return (
        f'<div class="head {colour}"><i></i>split {split} on {escape(told.splits[split])}'
        f"<small>{count}{brought}</small></div>"
    )


def _from(copy: "CopyRow", colours: dict[str, str]) -> str:
    return (
        f'<div class="from {colours[copy.origin]}">copy <b>{escape(copy.tensor)}</b> from '
        f"{escape(copy.origin)}: {human(copy.bytes)}</div>"
    )


def _node(told: "Explanation", number: int, row: "NodeRow", classes: str) -> str:
    refusals = "; ".join(row.refusals.values())
    fused = f"fused into {row.fused}" if row.fused else ""
    refused = f"refused by {refusals}" if refusals else ""
    notes = "; ".join(note for note in (row.note, fused, refused) if note)
    cells = (
        ("n", str(number)),
        ("name", row.node),
        ("op", row.op),
        ("shape", row.result),
        ("why", row.cause),
        ("no" if refusals else "more", notes),
    )
    spans = "".join(f'<span class="{kind}">{escape(text)}</span>' for kind, text in cells)
    return (
        f'<div class="row {classes}" id="n{number}" data-i="{number}" '
        f'data-tip="{escape(_tip(told, row))}">{spans}</div>'
    )


def _tip(told: "Explanation", row: "NodeRow") -> str:
    lines = [
        f"{row.node}: {row.op}, {row.result}",
        f"on {row.device}: {row.cause}",
        row.note,
        f"fused into {row.fused}" if row.fused else "",
        *(f"refused by {reason}" for reason in row.refusals.values()),
        f"reads {', '.join(told.nodes[n].node for n in row.reads)}" if row.reads else "",
    ]
    return "\n".join(line for line in lines if line)


def _columns(told: "Explanation") -> str:
    """CSS widths of the columns: what their texts need, within COLUMNS; the last has the rest."""
    texts = [
        (str(number), row.node, row.op, row.result, row.cause)
        for number, row in enumerate(told.nodes)
    ]
    needed = [max((len(row[i]) for row in texts), default=0) for i in range(len(COLUMNS))]
    clamped = [min(max(n, low), high) for n, (low, high) in zip(needed, COLUMNS, strict=True)]
    return " ".join(f"{n}ch" for n in clamped) + " minmax(0, 1fr)"

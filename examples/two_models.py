"""One server, two models: python two_models.py MODEL MODEL."""

import json
import subprocess
import sys
from urllib.request import Request, urlopen

command = ["tensorplug-llm", "serve", *sys.argv[1:], "--port", "0"]
server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def post(url: str, body: dict[str, object]) -> dict:
    """The server's answer to a request."""
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)


try:
    assert server.stderr is not None
    logs = (json.loads(line) for line in server.stderr if line.startswith("{"))
    url = next(log["url"] for log in logs if log["event"] == "listening")
    with urlopen(f"{url}/v1/models") as answer:
        served = [model["id"] for model in json.load(answer)["data"]]
    for model in served:
        body = {"model": model, "prompt": "The capital of France is", "max_tokens": 4}
        answer = post(f"{url}/v1/completions", {**body, "temperature": 0})
        print(f"{model}: {answer['choices'][0]['text']!r}")
finally:
    server.terminate()
    server.wait()

"""What HTTP costs: clients of a server, and the engine without one, in turns, as JSON.

    python benchmarks/serving.py smollm2-135m --device cpu@tensorplug-native

The clients send one streamed request each, all at the same time, for the prompts and tokens that
the engine gets. Tokens per second are those of all texts, from the first request until the last
text has ended.
"""

import argparse
import gc
import json
import re
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import tensorplug as tp
from tensorplug.device import SupportsThreads
from tensorplug_llm import Engine, SamplingParams, find_model, load_model

START = "from tensorplug_llm_console import main; main()"
STRIDE = 7919
WARM_UP = 3
"""Rounds before the first timed one: texts of clients arrive at different times, in shapes that the
engine plans once."""
NEVER = -100.0
"""Added to the logits of tokens that end a text."""
PAUSE = 0.01
"""Seconds between two looks of the clients, which leave the processor to the server."""


@contextmanager
def server(path: Path, device: str, context: int) -> Iterator[tuple[str, int]]:
    """Address of a server in a process of its own."""
    options = ("--port", "0", "--device", device, "--context", str(context))
    command = (sys.executable, "-c", START, "serve", str(path), *options)
    with subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stderr is not None
        try:
            logs = (json.loads(line) for line in process.stderr if line.startswith("{"))
            place = urlsplit(next(log["url"] for log in logs if log["event"] == "listening"))
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield place.hostname or "", place.port or 0
        finally:
            process.terminate()


def request(body: Mapping[str, object]) -> bytes:
    """One completion, after which the server closes the connection."""
    text = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    )
    return head.encode() + text


def answers(address: tuple[str, int], requests: Sequence[bytes]) -> list[bytes]:
    """Send all requests at the same time; return what came of each."""
    found: dict[socket.socket, list[bytes]] = {}
    with selectors.DefaultSelector() as waiting:
        for one in requests:
            connection = socket.create_connection(address)
            connection.sendall(one)
            waiting.register(connection, selectors.EVENT_READ)
            found[connection] = []
        while waiting.get_map():
            for key, _ in waiting.select():
                connection = key.fileobj
                if received := connection.recv(1 << 16):
                    found[connection].append(received)
                else:
                    waiting.unregister(connection)
                    connection.close()
            time.sleep(PAUSE)
    return [b"".join(parts) for parts in found.values()]


def over_http(
    address: tuple[str, int],
    prompts: Sequence[Sequence[int]],
    tokens: int,
    bias: Mapping[int, float],
) -> float:
    """Tokens per second of clients."""
    shared = {"max_tokens": tokens, "temperature": 0, "logit_bias": bias, "stream": True}
    usage = {"stream_options": {"include_usage": True}}
    requests = [request({"prompt": ids, **shared, **usage}) for ids in prompts]
    begin = time.perf_counter()
    found = answers(address, requests)
    seconds = time.perf_counter() - begin
    counts = [int(n) for text in found for n in re.findall(rb'"completion_tokens":(\d+)', text)]
    assert counts == [tokens] * len(prompts), found[0][:500]
    return sum(counts) / seconds


def in_process(engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> float:
    """Tokens per second of the engine."""
    begin = time.perf_counter()
    streams = [engine.submit(ids, params) for ids in prompts]
    count = sum(len(stream.result()) for stream in streams)
    return count / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="path or name of a model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=8, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=192, help="tokens generated for each client")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    tp.load_all()
    path, context = find_model(given.model), 2048
    with tp.open(given.device) as backend:
        if isinstance(backend, SupportsThreads):
            backend.threads = given.threads
        device = f"{given.device}?threads={given.threads}"
        gc.freeze()
        with (
            load_model(path, [backend]) as model,
            Engine(model, context=context) as engine,
            server(path, device, context) as address,
        ):
            size = model.tokenizer.vocab_size
            prompts = [
                [(STRIDE * (i + 1) + start) % size for i in range(given.prompt)]
                for start in range(given.clients)
            ]
            bias = dict.fromkeys(model.tokenizer.end_of_generation, NEVER)
            params = SamplingParams(temperature=0, max_tokens=given.tokens, logit_bias=bias)
            rounds = [
                (
                    in_process(engine, prompts, params),
                    over_http(address, prompts, given.tokens, bias),
                )
                for _ in range(WARM_UP + given.rounds)
            ][WARM_UP:]
    found = {
        "model": given.model,
        "device": device,
        "clients": given.clients,
        "engine": [bare for bare, _ in rounds],
        "http": [http for _, http in rounds],
        "ratio": statistics.median(http / bare for bare, http in rounds),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

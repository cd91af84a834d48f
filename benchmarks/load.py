"""What clients wait for under load: a server and its peers, as JSON.

    python benchmarks/load.py smollm2-135m --clients 16 -- llama-server --parallel 16
    python benchmarks/load.py smollm2-135m --rate 1.5

Behind `--` stands the command of a peer that speaks OpenAI's API; it gets the options that
`--model-option` and `--port-option` name. Without one the server is `tensorplug-llm serve`.
Requests arrive by a Poisson process of `--rate` requests a second, or from `--clients` that each
send the next one when theirs is answered. Prompts begin with a system prompt that all share.
"""

import argparse
import asyncio
import contextlib
import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tensorplug.gguf import open_gguf
from tensorplug_llm import find_model
from tensorplug_llm.tokenizer import Tokenizer, load_tokenizer

START = "from tensorplug_llm_console import main; main()"
PATIENCE = 120
NEVER = -100.0
"""Added to the logits of tokens that end a text."""
SYSTEM = 256
"""Tokens of the system prompt that all requests share."""


@dataclass
class Sent:
    """A request, and when its parts came, in seconds."""

    body: bytes
    tokens: int
    sent: float = 0.0
    times: list[float] = field(default_factory=list)


def words(tokenizer: Tokenizer, rng: random.Random, count: int) -> str:
    """A text of `count` tokens: words with a space before them, a token each."""
    found: list[str] = []
    while len(found) < count:
        piece = tokenizer.piece(rng.randrange(tokenizer.vocab_size))
        if piece[:1] == b" " and piece[1:].isalpha() and piece.isascii():
            found.append(piece.decode())
    return "".join(found)


def requests_of(given: argparse.Namespace, tokenizer: Tokenizer) -> list[Sent]:
    """The same requests for all servers."""
    rng = random.Random(given.seed)
    system = words(tokenizer, random.Random(0), SYSTEM)
    ends = sorted(tokenizer.end_of_generation)
    found = []
    for _ in range(given.requests):
        own = rng.randint(*given.prompt)
        tokens = rng.randint(*given.answer)
        body = {
            "prompt": system + words(tokenizer, rng, own),
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "logit_bias": {str(end): NEVER for end in ends},
        }
        found.append(Sent(json.dumps(body).encode(), tokens))
    return found


@contextlib.contextmanager
def server(given: argparse.Namespace, path: Path) -> Iterator[int]:
    """The port of a server in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    if given.command:
        options = [given.model_option, str(path), given.port_option, str(port)]
        command = [*given.command, *options]
    else:
        options = ["--port", str(port), "--device", given.device, "--context", "2048"]
        options += ["--texts", str(given.slots), "--cache", str(1024 * given.slots)]
        command = [sys.executable, "-c", START, "serve", str(path), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until_answered(process, port)
            yield port
        finally:
            process.kill()


def wait_until_answered(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the server answers a short request."""
    warm = Sent(json.dumps({"prompt": "a", "max_tokens": 1, "stream": True}).encode(), 1)
    end = time.perf_counter() + PATIENCE
    while time.perf_counter() < end and process.poll() is None:
        with contextlib.suppress(OSError, RuntimeError):
            asyncio.run(answered(port, warm))
            return
        time.sleep(0.1)
    raise RuntimeError("the server does not answer")


async def answered(port: int, request: Sent) -> None:
    """Send a request and note when each part of its text comes."""
    request.sent = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(request.body)}\r\n\r\n"
    )
    try:
        writer.write(head.encode() + request.body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"{status!r}: {(await reader.read(2000))!r}")
        async for line in lines(reader):
            if line.startswith(b"data: {") and b'"error"' in line[:20]:
                raise RuntimeError(line.decode())
            if line.startswith(b"data: {") and b'"usage"' not in line[:60]:
                request.times.append(time.perf_counter())
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of an answer until the last event."""
    while line := await reader.readline():
        yield line
        if line.startswith(b"data: [DONE]"):
            return


async def arriving(port: int, requests: Sequence[Sent], rate: float, seed: int) -> None:
    """Requests of a Poisson process."""
    rng = random.Random(seed)
    async with asyncio.TaskGroup() as running:
        for request in requests:
            await asyncio.sleep(rng.expovariate(rate))
            running.create_task(answered(port, request))


async def in_turns(port: int, requests: Sequence[Sent], clients: int) -> None:
    """Requests of clients that wait for an answer before they send the next one."""
    waiting = iter(requests)

    async def client() -> None:
        for request in waiting:
            await answered(port, request)

    async with asyncio.TaskGroup() as running:
        for _ in range(clients):
            running.create_task(client())


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of all values is."""
    found = sorted(values)
    return found[min(int(share * len(found)), len(found) - 1)]


def report(requests: Sequence[Sent]) -> dict[str, float]:
    """Milliseconds and rates of answered requests."""
    first = [request.times[0] - request.sent for request in requests]
    gaps = [b - a for r in requests for a, b in zip(r.times, r.times[1:], strict=False)]
    seconds = max(r.times[-1] for r in requests) - min(r.sent for r in requests)
    return {
        "requests": len(requests),
        "first token p50 ms": round(1e3 * percentile(first, 0.5), 1),
        "first token p95 ms": round(1e3 * percentile(first, 0.95), 1),
        "between tokens p95 ms": round(1e3 * percentile(gaps, 0.95), 1),
        "tokens per second": round(sum(r.tokens for r in requests) / seconds, 1),
        "requests per second": round(len(requests) / seconds, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="path or name of a model")
    parser.add_argument("--model-option", default="--model")
    parser.add_argument("--port-option", default="--port")
    parser.add_argument("--device", default="cpu@tensorplug-native?threads=2")
    parser.add_argument("--slots", type=int, default=16, help="texts at the same time")
    parser.add_argument("--rate", type=float, help="requests a second")
    parser.add_argument("--clients", type=int, default=16, help="without --rate")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--warm-up", type=int, default=16, help="requests before the timed ones")
    parser.add_argument(
        "--settle", type=float, default=0.0, help="idle seconds before, for servers that plan then"
    )
    parser.add_argument("--prompt", type=int, nargs=2, default=(32, 256), metavar=("LEAST", "MOST"))
    parser.add_argument("--answer", type=int, nargs=2, default=(16, 128), metavar=("LEAST", "MOST"))
    parser.add_argument("--seed", type=int, default=1)
    border = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = parser.parse_args(sys.argv[1:border])
    given.command = sys.argv[border + 1 :]
    path = find_model(given.model)
    with open_gguf(path) as file:
        tokenizer = load_tokenizer(file.metadata)
    requests = requests_of(given, tokenizer)
    warm = requests_of(argparse.Namespace(**{**vars(given), "seed": 0}), tokenizer)
    with server(given, path) as port:
        time.sleep(given.settle)
        asyncio.run(in_turns(port, warm[: given.warm_up], given.clients))
        if given.rate:
            asyncio.run(arriving(port, requests, given.rate, given.seed))
        else:
            asyncio.run(in_turns(port, requests, given.clients))
    load = {"rate": given.rate} if given.rate else {"clients": given.clients}
    print(json.dumps({"model": given.model, "command": given.command, **load, **report(requests)}))


if __name__ == "__main__":
    main()

"""What devices behind actors of Ray cost and bring, on one machine, in turns with the other way.

    python benchmarks/ray_actors.py token smollm2-135m
    python benchmarks/ray_actors.py prompt smollm2-135m --pieces 64 128 256
    python benchmarks/ray_actors.py replicas smollm2-135m
    python benchmarks/ray_actors.py start smollm2-135m

`token`: milliseconds of a token on one device, here and behind an actor. `prompt`: seconds for 512
tokens through two actors, pieces one by one and in flight together. `replicas`: tokens per second
of one and of two replicas on Ray Serve. `start`: seconds from the start of a process to the first
token, with a cluster that runs, and how long `connect` takes of it. Each device has one thread. A
cluster starts unless RAY_ADDRESS names one.
"""

import argparse
import itertools
import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median
from typing import Any

import tensorplug as tp
import tensorplug_ray
from tensorplug.device import Backend
from tensorplug_llm import Engine, SamplingParams, batching, load_model
from tensorplug_llm.step import Reading

CPU = "cpu?threads=1"
PORT = 18_437
CLIENTS, TEXTS = 32, 8
"""Requests at once, and texts that run at once in each replica."""
STORY = "Once upon a time, there was a little girl who"

Report = dict[str, object]


@contextmanager
def engine(model: str, *streams: Backend) -> Iterator[Engine]:
    with (
        load_model(model, streams) as loaded,
        Engine(loaded, context=640, texts=1, threaded=False) as made,
    ):
        yield made


def times(made: Engine, prompt: Sequence[int], tokens: int) -> list[float]:
    """Seconds until the first token, and between tokens."""
    stream = made.submit(prompt, SamplingParams(temperature=0, max_tokens=tokens))
    stream.result()
    stamps = [stream.submitted, *stream.times]
    return [after - before for before, after in itertools.pairwise(stamps)]


def token(given: argparse.Namespace) -> Report:
    (device,) = tensorplug_ray.connect(given.address, devices=[CPU])
    found = defaultdict[str, list[float]](list)
    with (
        tp.open(CPU) as near,
        device.open() as far,
        engine(given.model, near) as local,
        engine(given.model, far) as remote,
    ):
        ids = local.model.tokenizer.encode(STORY)
        for number in range(given.rounds + 1):
            for name, made in (("local", local), ("actor", remote)):
                gaps = times(made, ids, given.tokens)[1:]
                if number:  # plans are made in the round before
                    found[name].append(1e3 * median(gaps))
    more = [b - a for a, b in zip(found["local"], found["actor"], strict=True)]
    return {f"{name} ms": rounded(ms) for name, ms in found.items()} | {"more ms": rounded(more)}


def prompt(given: argparse.Namespace) -> Report:
    streams = [d.open() for d in tensorplug_ray.connect(given.address, devices=[CPU, CPU])]
    found = defaultdict[str, list[float]](list)
    with engine(given.model, *streams) as made:
        runner = made._batcher.runner  # no user chooses between the two
        together = runner.submit

        def one_by_one(readings: Sequence[Reading], needed: int = 0) -> Callable[[], Any]:
            logits = together(readings, needed)()
            return lambda: logits

        for number in range(given.rounds + 1):
            for at, size in enumerate(given.pieces):
                batching.CHUNK = size
                for name, submit in (("one by one", one_by_one), ("in flight", together)):
                    runner.submit = submit
                    start = 100 + len(name) + 20 * (at + len(given.pieces) * number)
                    ids = [1, start, *(200 + (at * 7) % 900 for at in range(510))]
                    seconds, _ = times(made, ids, 2)
                    if number:
                        found[f"pieces of {size}, {name}"].append(seconds)
    for stream in streams:
        stream.close()
    rows: Report = {name: rounded(seconds) for name, seconds in found.items()}
    for size in given.pieces:
        both = (found[f"pieces of {size}, {name}"] for name in ("one by one", "in flight"))
        rows[f"pieces of {size}, ratio"] = rounded(a / b for a, b in zip(*both, strict=True))
    return rows


def replicas(given: argparse.Namespace) -> Report:
    from tensorplug_ray.serve.replica import Settings  # noqa: PLC0415 - imports Ray
    from tensorplug_ray.serve.running import end, serve  # noqa: PLC0415

    def ask(number: int) -> int:
        body = {"prompt": f"{number} {STORY}", "max_tokens": given.tokens, "temperature": 0}
        request = urllib.request.Request(
            f"http://127.0.0.1:{PORT}/v1/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)["usage"]["completion_tokens"]

    found = defaultdict[int, list[float]](list)
    settings = Settings(given.model, (CPU,), context=256, texts=TEXTS)
    with ThreadPoolExecutor(CLIENTS) as pool:
        for _ in range(given.rounds):
            for count in (1, 2):
                serve(settings, replicas=count, address=given.address, port=PORT)
                list(pool.map(ask, range(2 * CLIENTS)))  # each replica makes its plans
                start = time.perf_counter()
                tokens = sum(pool.map(ask, range(100, 100 + 4 * CLIENTS)))
                found[count].append(tokens / (time.perf_counter() - start))
                end()
    ratios = [b / a for a, b in zip(found[1], found[2], strict=True)]
    rows = {f"{count} tokens/s": rounded(speeds) for count, speeds in found.items()}
    return {**rows, "ratio": rounded(ratios)}


FIRST = """
import sys, time
start = time.perf_counter()
from tensorplug_llm import Engine, SamplingParams, load_model
count, model, text, cpu = int(sys.argv[1]), *sys.argv[2:]
if count:
    import tensorplug_ray
    called = time.perf_counter()
    devices = tensorplug_ray.connect("auto", devices=[cpu] * count)
    print(time.perf_counter() - called, time.perf_counter() - start)
    streams = [device.open() for device in devices]
else:
    import tensorplug
    print(0.0, 0.0)
    streams = [tensorplug.open(cpu)]
with load_model(model, streams) as loaded, Engine(loaded, context=64, threaded=False) as engine:
    ids = loaded.tokenizer.encode(text)
    engine.submit(ids, SamplingParams(temperature=0, max_tokens=1)).result()
    print(time.perf_counter() - start)
"""


def start(given: argparse.Namespace) -> Report:
    import ray  # noqa: PLC0415 - reads RAY_AUTH_MODE when it is imported

    if given.address == "local":
        ray.init(address="local", include_dashboard=False, logging_level="error")
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    found = defaultdict[str, list[float]](list)
    for _ in range(given.rounds):
        for count in range(3):
            command = [sys.executable, "-c", FIRST, str(count), given.model, STORY, CPU]
            made = subprocess.run(command, check=True, capture_output=True, text=True)
            call, connected, first = map(float, made.stdout.split()[-3:])
            found[f"{count} actors, connect by itself"].append(call)
            found[f"{count} actors, connect with imports"].append(connected)
            found[f"{count} actors, first token"].append(first)
    return {name: rounded(seconds) for name, seconds in found.items()}


def rounded(values: Iterable[float]) -> dict[str, object]:
    """The median, and all values in order."""
    inside = sorted(values)
    return {"median": round(median(inside), 3), "all": [round(value, 3) for value in inside]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ways = {way.__name__: way for way in (token, prompt, replicas, start)}
    parser.add_argument("what", choices=ways)
    parser.add_argument("model", help="a name or a file of the command line of tensorplug-llm")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=40, help="of each text")
    parser.add_argument("--pieces", type=int, nargs="+", default=[64, 256], help="tokens of each")
    parser.set_defaults(address=os.environ.get("RAY_ADDRESS", "local"))
    given = parser.parse_args()
    if given.address == "local":
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    print(json.dumps(ways[given.what](given), indent=1))


if __name__ == "__main__":
    main()

"""A whole process that continues a prompt, next to llama-cpp-python doing the same: JSON.

Each round starts one process after the other: wall time from start to exit, peak memory as the
system counts it. Ratios are medians of the rounds' ratios; below 1 ours is faster or smaller.
The pair of processes before the first round reads the files into the page cache, and writes the
bytecode of modules that lack it to a folder of the benchmark's.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tensorplug_llm.models import find_model

PROMPT = "The most important thing about a bridge is"
PEER = """
import sys
from llama_cpp import Llama
model = Llama(sys.argv[1], n_threads=int(sys.argv[3]), n_threads_batch=int(sys.argv[3]),
              verbose=False)
found = model.create_completion(sys.argv[2], max_tokens=int(sys.argv[4]), temperature=0.0)
print(found["choices"][0]["text"])
"""

Figures = dict[str, float]


def ours(model: Path, arguments: argparse.Namespace) -> list[str]:
    """The command of this project."""
    command = [sys.executable, "-c", "from tensorplug_llm_console import main; main()"]
    tokens, threads = str(arguments.tokens), str(arguments.threads)
    sampling = ["--temperature", "0", "--tokens", tokens]
    device = ["--device", arguments.device, "--threads", threads]
    return [*command, "generate", str(model), "--prompt", PROMPT, *sampling, *device]


def theirs(model: Path, arguments: argparse.Namespace) -> list[str]:
    """The same with llama-cpp-python."""
    values = (str(model), PROMPT, str(arguments.threads), str(arguments.tokens))
    return [arguments.peer, "-c", PEER, *values]


def with_bytecode(folder: str) -> dict[str, str]:
    """Variables that let Python keep bytecode in a folder, as installers do."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**environ, "PYTHONPYCACHEPREFIX": folder}


def measured(command: Sequence[str], environ: Mapping[str, str]) -> Figures:
    """Seconds and MiB of one process. Raises SystemExit where it fails."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ
    )
    assert process.stderr is not None
    complaint = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[0]}: {complaint.decode(errors='replace')}")
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    processor = usage.ru_utime + usage.ru_stime
    return {"wall_s": wall, "processor_s": processor, "peak_mib": usage.ru_maxrss / unit}


def summary(rounds: Sequence[tuple[Figures, Figures]]) -> dict[str, Figures]:
    """Medians of both and of the rounds' ratios, by figure."""
    return {
        name: {
            "ours": round(statistics.median(mine[name] for mine, _ in rounds), 3),
            "theirs": round(statistics.median(peer[name] for _, peer in rounds), 3),
            "ratio": round(statistics.median(mine[name] / peer[name] for mine, peer in rounds), 3),
        }
        for name in rounds[0][0]
    }


def compare(
    name: str, arguments: argparse.Namespace, environ: Mapping[str, str]
) -> dict[str, Figures]:
    """All rounds of one model; the first pair of processes is not counted."""
    model = find_model(name)
    sides: tuple[Callable[[Path, argparse.Namespace], list[str]], ...] = (ours, theirs)
    rounds = []
    for number in range(arguments.rounds + 1):
        mine, peer = (measured(side(model, arguments), environ) for side in sides)
        if number:
            rounds.append((mine, peer))
            print(json.dumps({name: rounds[-1]}), file=sys.stderr, flush=True)
    return summary(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="gemma3-270m smollm2-135m", help="in one string")
    parser.add_argument("--peer", default=sys.executable, help="a Python with llama-cpp-python")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="file for the JSON; printed without it")
    arguments = parser.parse_args()
    results: dict[str, object] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "device": arguments.device,
        "threads": arguments.threads,
        "tokens": arguments.tokens,
        "rounds": arguments.rounds,
    }
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models.split():
            results[name] = compare(name, arguments, with_bytecode(folder))
    text = json.dumps(results, indent=1)
    if arguments.out is None:
        print(text)
    else:
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

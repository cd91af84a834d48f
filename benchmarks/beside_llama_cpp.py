"""tensorplug on a device and llama.cpp on the processor of the same machine, compared: JSON.

Each round measures both in fresh processes, one after the other; ratios are medians of the rounds'
ratios, so that what the machine does to both cancels. `models` are read and continued as
`tensorplug-llm bench` does; `products` are those of `opencl_matmul.py` and `ggml_matmul.py`; f32
is compared with NumPy. llama.cpp comes from llama-cpp-python, in the Python that `--peer` names.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_speeds import START

from tensorplug_llm.models import find_model

HERE = Path(__file__).parent
MATVEC = "q8_0 q4_0 q5_0 q4_K q6_K"

Figures = dict[str, float]


def output(command: Sequence[object]) -> list[Any]:
    """The JSON values that a command prints, one in a line."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def models_round(path: Path, arguments: argparse.Namespace) -> tuple[Figures, Figures]:
    """Tokens per second of ours and of llama.cpp."""
    repeat = ("--repeat", arguments.repeat)
    prompt = arguments.prompt
    command = ("tensorplug-llm", "bench", path, "--json", "--prompt-tokens", prompt)
    (ours,) = output([*command, "--device", arguments.device, *repeat])
    threads = ("--threads", arguments.threads)
    prompts = ("--prompts", prompt)
    (peer,) = output(
        [arguments.peer, HERE / "llama_cpp_model.py", path, *threads, *prompts, *repeat]
    )
    mine = {name: ours[f"{name}_tokens_per_s"] for name in ("prefill", "decode")}
    return mine, {"prefill": peer[f"prefill {prompt}"], "decode": peer[f"decode at {START}"]}


def products_round(arguments: argparse.Namespace) -> tuple[Figures, Figures]:
    """GB/s of GEMVs with weights from memory, and GFLOP/s of f32 GEMMs; then those of the peers."""
    measure = [sys.executable, HERE / "opencl_matmul.py", "--device", arguments.device]
    ours = output([*measure, "--types", MATVEC, "--cold", "2048x2048", "--shapes", ""])
    peer = output([sys.executable, HERE / "ggml_matmul.py", "--threads", arguments.threads])
    (plain,) = output([*measure, "--types", "f32", "--cold", "", "--shapes", "2048x2048"])
    mine = {record["type"]: record["GB/s"] for record in ours}
    theirs = {record["type"]: record["plain"] for record in peer}
    packed = {f"{r['type']} repacked": r["GB/s"] for r in peer if r["weights"] != "plain"}
    mine |= {name: mine[name.split()[0]] for name in packed}
    mine["f32 matmul"], theirs["f32 matmul"] = plain["GFLOP/s"], plain["numpy GFLOP/s"]
    return mine, {**theirs, **packed}


def summary(rounds: Sequence[tuple[Figures, Figures]]) -> dict[str, Figures]:
    """Medians of both and of their ratios, by figure."""
    return {
        name: {
            "ours": round(statistics.median(ours[name] for ours, _ in rounds), 1),
            "theirs": round(statistics.median(theirs[name] for _, theirs in rounds), 1),
            "ratio": round(statistics.median(o[name] / t[name] for o, t in rounds), 2),
        }
        for name in rounds[0][0]
    }


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """All comparisons, round by round."""
    paths = {Path(name).stem: find_model(name) for name in arguments.models.split()}
    results: dict[str, list[tuple[Figures, Figures]]] = {}
    for _ in range(arguments.rounds):
        for name, path in paths.items():
            results.setdefault(name, []).append(models_round(path, arguments))
            print(json.dumps({name: results[name][-1]}), file=sys.stderr, flush=True)
        if arguments.products:
            results.setdefault("products", []).append(products_round(arguments))
            print(json.dumps(results["products"][-1]), file=sys.stderr, flush=True)
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "device": arguments.device,
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        **{name: summary(rounds) for name, rounds in results.items()},
    }


def parser_of(description: str, device: str) -> argparse.ArgumentParser:
    """The arguments of comparisons with llama.cpp."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--device", default=device)
    parser.add_argument(
        "--models", default="gemma3-270m smollm2-135m", help="several in one string"
    )
    parser.add_argument("--peer", default=sys.executable, help="a Python with llama-cpp-python")
    parser.add_argument("--products", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3, help="timed runs in each process")
    parser.add_argument("--out", type=Path, help="file for the JSON; printed without it")
    return parser


def report(results: dict[str, Any], out: Path | None) -> None:
    """Write the results to `out`, or print them."""
    text = json.dumps(results, indent=1)
    if out is None:
        print(text)
    else:
        out.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = parser_of(__doc__, "opencl:0")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    arguments = parser.parse_args()
    report(compare(arguments), arguments.out)


if __name__ == "__main__":
    main()

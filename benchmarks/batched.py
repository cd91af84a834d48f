"""Many texts at once: the engine next to llama.cpp's batched decoding, in turns, as JSON.

    python benchmarks/batched.py --peer PYTHON --out benchmarks/results/batched.json

Each round measures both in fresh processes, one after the other, and the last lines are medians of
the rounds' ratios. `PYTHON` is an interpreter with llama-cpp-python (by default this one). The
other figures of `engine_speeds.py` are taken in the first round.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from tensorplug_llm import find_model

HERE = Path(__file__).parent
MODELS = ("smollm2-135m", "gemma3-270m")


def answer(*command: str) -> dict[str, object]:
    """The last line that a command prints, as JSON."""
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def compared(model: str, given: argparse.Namespace) -> dict[str, object]:
    """Both engines on one model."""
    ours, theirs, ratios = [], [], []
    shared = ("--counts", given.counts, "--threads", str(given.threads))
    first: dict[str, object] = {}
    own, peers = (str(HERE / f"{name}.py") for name in ("engine_speeds", "llama_cpp_batches"))
    for round in range(given.rounds):
        only = () if round == 0 else ("--only", "decode")
        measured = answer(sys.executable, own, model, "--device", given.device, *shared, *only)
        first = first or measured
        peer = answer(given.peer, peers, str(find_model(model)), *shared)
        ours.append(measured["decode"])
        theirs.append(peer)
        ratios.append({n: ours[-1][n] / theirs[-1][n] for n in peer})
        print(model, json.dumps(ratios[-1]), file=sys.stderr)
    middle = {n: statistics.median(r[n] for r in ratios) for n in ratios[0]}
    more = {name: value for name, value in first.items() if name != "decode"}
    return {"ours": ours, "theirs": theirs, "ratios": middle, **more}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--peer", default=sys.executable, help="Python with llama-cpp-python")
    parser.add_argument("--counts", default="1 4 8 16 32", help="numbers of texts, in one string")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = {model: compared(model, given) for model in given.models}
    text = json.dumps({"device": given.device, "threads": given.threads, "models": found}, indent=1)
    if given.out:
        given.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()

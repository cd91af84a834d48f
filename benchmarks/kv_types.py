"""What each type of the KV cache costs and saves, as JSON.

Errors are those of the logits of a text with exact activations next to a cache of f32: relative L2,
mean KL divergence, share of equal first choices, and the perplexity; `plain` is the relative L2
without rotation, `heads` that with whole heads rotated in the place of blocks. Speeds are those of
one text with the default activations, in turns: each round decodes tokens with every type, `decode`
is the median of the rounds' ratios to f16.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

import tensorplug as tp
from tensorplug_llm import LanguageModel, load_model
from tensorplug_llm.cache import KV_TYPES
from tensorplug_llm.rotation import hadamard
from tensorplug_llm.testing import LoneText, distance

TEXT = Path(__file__).parents[1] / "docs" / "architecture.md"


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


def scored(
    model: LanguageModel, ids: list[int], kv: tp.DType, matrix: tp.Tensor | str = ""
) -> tuple[np.ndarray, int]:
    """Logits of all positions, and the bytes of the cache; `matrix` takes the place of its own."""
    with LoneText(model, len(ids), kv=kv) as text:
        rotations = text.runner.cache.rotations
        if matrix == "none":
            rotations.clear()
        elif isinstance(matrix, tp.Tensor):
            rotations |= dict.fromkeys(rotations, matrix)
        logits = text.score(ids)[:, : model.tokenizer.vocab_size]
        return logits, text.runner.cache.nbytes


def error(found: np.ndarray, exact: np.ndarray, ids: list[int]) -> dict[str, float]:
    mine, theirs = log_probabilities(found), log_probabilities(exact)
    chosen = mine[np.arange(len(ids) - 1), ids[1:]]
    return {
        "relative_l2": float(f"{distance(found, exact):.2g}"),
        "kl": float(f"{np.mean((np.exp(theirs) * (theirs - mine)).sum(axis=1)):.2g}"),
        "same_first": round(float(np.mean(found.argmax(axis=1) == exact.argmax(axis=1))), 3),
        "perplexity": round(float(np.exp(-chosen.mean())), 3),
    }


def errors(model: LanguageModel, ids: list[int]) -> dict[str, dict[str, object]]:
    """The errors and bytes of each type."""
    exact, _ = scored(model, ids, tp.F32)
    head = model.hparams.key_length & -model.hparams.key_length
    matrix = model.backends[0].place("heads", hadamard(head))
    report: dict[str, dict[str, object]] = {}
    for name, kv in KV_TYPES.items():
        logits, size = scored(model, ids, kv)
        report[name] = {"bytes": size, **error(logits, exact, ids)}
        if kv.is_block:
            for way, other in (("plain", "none"), ("heads", matrix)):
                found, _ = scored(model, ids, kv, other)
                report[name][way] = float(f"{distance(found, exact):.2g}")
    return report


def speeds(model: LanguageModel, ids: list[int], rounds: int, tokens: int) -> dict[str, float]:
    """Tokens per second of each type as a share of those of f16."""
    texts = {name: LoneText(model, len(ids) + 512, kv=kv) for name, kv in KV_TYPES.items()}
    for text in texts.values():
        text.prefill(ids)
        text.decode(ids[0])
    seconds: dict[str, list[float]] = {name: [] for name in texts}
    for _ in range(rounds):
        for name, text in texts.items():
            text.rewind(len(ids))
            start = time.perf_counter()
            for token in ids[:tokens]:
                text.decode(token)
            seconds[name].append(time.perf_counter() - start)
    for text in texts.values():
        text.close()
    halves = seconds["f16"]
    return {
        name: round(statistics.median(h / s for h, s in zip(halves, series, strict=True)), 3)
        for name, series in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of the text")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    with tp.open(f"{given.device}?activations=f32") as exact, load_model(given.model, [exact]) as m:
        ids = m.tokenizer.encode(TEXT.read_text())[: given.tokens]
        report = errors(m, ids)
    with tp.open(given.device) as usual, load_model(given.model, [usual]) as model:
        for name, ratio in speeds(model, ids, given.rounds, 24).items():
            report[name]["decode"] = ratio
    for name, figures in report.items():
        print(json.dumps({"type": name, **figures}), flush=True)


if __name__ == "__main__":
    main()

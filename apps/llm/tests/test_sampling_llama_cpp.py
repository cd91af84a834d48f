"""The chain of rules leaves the tokens and probabilities that llama.cpp's samplers leave."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorplug_llm.sampling import Sampler, SamplingParams

CASES = json.loads(Path(__file__).with_name("llama_cpp_samplers.json").read_text(encoding="utf-8"))
"""Written by make_llama_cpp_samplers.py with llama-cpp-python 0.3.36."""


def logits(seed: int) -> Any:
    """As in make_llama_cpp_samplers.py."""
    return (((np.arange(96) * 40503 + seed * 30011) % 65536) / 4096 - 8).astype(np.float32)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['logits']}")
def test_chain_leaves_what_llama_cpp_leaves(case: dict[str, Any]) -> None:
    params = dict(case["params"])
    params["logit_bias"] = {int(id): b for id, b in params.get("logit_bias", {}).items()}
    sampler = Sampler(SamplingParams(**params))

    ids, probabilities = sampler.distribution(logits(case["logits"]), case["history"])

    found = {id: p for id, p in zip(ids, probabilities, strict=True) if p > 0}
    expected = {int(id): p for id, p in case["left"].items()}
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-4)

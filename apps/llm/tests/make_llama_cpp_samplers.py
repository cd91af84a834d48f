"""Writes what llama.cpp's samplers leave of some logits, for test_sampling_llama_cpp.py.

Needs llama-cpp-python 0.3.36 and NumPy, and nothing of tensorplug:

    python apps/llm/tests/make_llama_cpp_samplers.py
"""

import ctypes
import json
import random
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

llama_cpp: Any = import_module("llama_cpp")  # without types

DATA = Path(__file__).with_name("llama_cpp_samplers.json")
TOKENS = 96
NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def logits(seed: int) -> np.ndarray:
    """Distinct numbers from -8 to 8 that are exact in f32."""
    mixed = (np.arange(TOKENS) * 40503 + seed * 30011) % 65536
    return (mixed / 4096 - 8).astype(np.float32)


def cases() -> list[dict[str, Any]]:
    """Each rule by itself, then chains of several."""
    choices: dict[str, list[Any]] = {
        "temperature": [0.0, 0.3, 0.8, 1.7],
        "top_k": [1, 7, 40, 200],
        "top_p": [0.0, 0.2, 0.7, 0.95, 0.9999],
        "min_p": [0.01, 0.05, 0.5, 1.0],
        "typical_p": [0.0, 0.2, 0.7, 0.95],
        "repeat_penalty": [0.8, 1.1, 2.0],
        "presence_penalty": [-1.0, 0.5, 3.0],
        "frequency_penalty": [-0.5, 0.25, 2.0],
        # None so small that its probability is 0: then the entropy is NaN in llama.cpp.
        "logit_bias": [{"3": 4.0, "50": -2.5}, {"7": -30.0, "90": 20.0}],
    }
    single = [{**NEUTRAL, name: value} for name, values in choices.items() for value in values]
    chance = random.Random(1)
    several = []
    for _ in range(40):
        names = chance.sample(sorted(choices), chance.randrange(2, 7))
        several.append({**NEUTRAL, **{name: chance.choice(choices[name]) for name in names}})
    defaults: list[dict[str, Any]] = [{}] * 4
    return [
        {
            "logits": seed,
            "history": [chance.randrange(TOKENS) for _ in range(chance.choice([5, 100]))],
            "params": {**params, "repeat_last_n": chance.choice([8, 64])},
        }
        for seed, params in enumerate([*defaults, *single, *several])
    ]


def left(case: dict[str, Any]) -> dict[str, float]:
    """The tokens that llama.cpp's default chain leaves, and their probabilities."""
    params = {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.05,
        "typical_p": 1.0,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        **case["params"],
    }
    bias = (llama_cpp.llama_logit_bias * len(params["logit_bias"]))(
        *((int(id), value) for id, value in params["logit_bias"].items())
    )
    penalties = llama_cpp.llama_sampler_init_penalties(
        TOKENS,
        params["repeat_last_n"],
        params["repeat_penalty"],
        params["frequency_penalty"],
        params["presence_penalty"],
    )
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    for sampler in (
        llama_cpp.llama_sampler_init_logit_bias(TOKENS, len(bias), bias),
        penalties,
        llama_cpp.llama_sampler_init_top_k(params["top_k"]),
        llama_cpp.llama_sampler_init_typical(params["typical_p"], 0),
        llama_cpp.llama_sampler_init_top_p(params["top_p"], 0),
        llama_cpp.llama_sampler_init_min_p(params["min_p"], 0),
        llama_cpp.llama_sampler_init_temp(params["temperature"]),
    ):
        llama_cpp.llama_sampler_chain_add(chain, sampler)
    for token in case["history"]:
        llama_cpp.llama_sampler_accept(chain, token)
    entries = (llama_cpp.llama_token_data * TOKENS)(
        *((id, float(logit), 0.0) for id, logit in enumerate(logits(case["logits"])))
    )
    array = llama_cpp.llama_token_data_array(entries, TOKENS, -1, False)
    llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
    kept = [(array.data[i].id, array.data[i].logit) for i in range(array.size)]
    llama_cpp.llama_sampler_free(chain)
    values = np.array([logit for _, logit in kept])
    weights = np.exp(values - values.max())
    weights /= weights.sum()
    found = {id: float(weight) for (id, _), weight in zip(kept, weights, strict=True) if weight > 0}
    return {str(id): float(f"{found[id]:.6g}") for id in sorted(found)}


def main() -> None:
    lines = ",\n".join(json.dumps({**case, "left": left(case)}) for case in cases())
    DATA.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()

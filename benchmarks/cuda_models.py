"""Language models on a GPU: a synthetic one of some GB, and Gemma compared with the cpu device."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from cuda_measure import BRANCHES, Bench, NotRun, streams
from native import weights
from synthetic_model import write_model

import tensorplug as tp
from tensorplug.device import Backend
from tensorplug.errors import OptionError, TensorplugError
from tensorplug.gguf import open_gguf
from tensorplug_cuda.plan import CudaPlan
from tensorplug_llm import LanguageModel, find_model, load_model
from tensorplug_llm.bench import bench as measured
from tensorplug_llm.testing import LoneText

REPEAT = 3
MORE = 8
"""Tokens before launches are counted: plans are captured by then."""
COUNTED = 4
PROMPTS = (
    "The capital of France is",
    "Once upon a time, there was a little girl who",
    "Water boils at a temperature of",
)
COMPARED: Sequence[tuple[str, int, tp.DType | None, dict[str, Any]]] = (
    ("floats", 1, tp.F32, {"activations": "f32"}),
    ("rounded", 1, None, {"activations": "int8"}),
    ("split", 2, tp.F32, {"activations": "f32", "emulated": "2"}),
)
"""Names, numbers of devices, the type of the cache where it is not the usual one, settings."""
FLOATS = "TENSORPLUG_CUDA_ACTIVATIONS=f32, the cache in f32"
CPU = "cpu@tensorplug-cpu"
"""The device whose tokens are the right ones."""


# --- a synthetic model ---------------------------------------------------------------------------


def synthetic(bench: Bench, kind: str) -> dict[str, Any]:
    """Decoding as a share of bandwidth, and reading a prompt as one of the rate of bf16.

    By each way to multiply, of which the best counts.
    """
    path = bench.folder / f"synthetic-{kind}.gguf"
    write_model(path, bench.sizes.model_bytes, kind)
    found: dict[str, Any] = {"bytes": path.stat().st_size}
    for way in bench.ways:
        bench.progress(way)
        try:
            with streams(products=way) as (stream,), load_model(path, [stream]) as model:
                found[way] = speeds(bench, model)
        except (NotRun, TensorplugError) as error:
            found[way] = {"not run": f"{type(error).__name__}: {error}"}
    for name in ("decode", "prefill"):
        ways = {way: found[way][name] for way in bench.ways if name in found[way]}
        if ways:
            best = max(ways, key=lambda way: ways[way].share)
            bench.ask(f"{name} {kind}", ways[best], f"TENSORPLUG_CUDA_PRODUCTS={best}")
    return found


def speeds(bench: Bench, model: LanguageModel) -> dict[str, Any]:
    """GB/s of weights read by decoding, TFLOP/s of products with them in reading a prompt."""
    # What start-up made stays: walking through it takes a collection longer than some steps do.
    gc.freeze()
    sizes, path = bench.sizes, model.file.path
    report = measured(model, prompt_tokens=sizes.prompt, tokens=sizes.tokens, repeat=REPEAT)
    stored, _ = weights(path)
    products = 2 * in_layers(path)
    decode, prefill = report.decode_tokens_per_s, report.prefill_tokens_per_s
    return {
        "decode": bench.figure("decode", decode * stored / 1e9, "GB/s", of="bandwidth"),
        "prefill": bench.figure("prefill", prefill * products / 1e12, "TFLOP/s", of="bf16"),
        "decode tokens": bench.figure("decode", decode, "tokens/s"),
        "prefill tokens": bench.figure("prefill", prefill, "tokens/s"),
        "load": bench.figure("load", report.load_s, "s"),
        "first token": bench.figure("first token", report.first_token_s, "s"),
        "launches per step": bench.figure("each step", launches(model), "launches"),
    }


def in_layers(path: Path) -> int:
    """Multiplications for each token of a prompt, without logits: only the last token has them."""
    with open_gguf(path) as file:
        return sum(
            int(np.prod(t.ne))
            for name, t in file.tensors.items()
            if name.startswith("blk.") and t.rank > 1
        )


# --- launches ------------------------------------------------------------------------------------


def launches(model: LanguageModel) -> float:
    """Launches of kernels for each decoded token, were none captured."""
    with LoneText(model, MORE + COUNTED) as text:
        for _ in range(MORE):
            text.decode(1)
        with counted() as runs:
            for _ in range(COUNTED):
                text.decode(1)
    return sum(runs) / COUNTED


@contextmanager
def counted() -> Iterator[list[int]]:
    """The number of launches of each plan that is run inside."""
    found: list[int] = []
    run = CudaPlan._run

    def noted(plan: CudaPlan) -> None:
        found.append(plan.launches)
        run(plan)

    # Nothing else sees every run of every plan.
    with patch.object(CudaPlan, "_run", noted):
        yield found


# --- Gemma ---------------------------------------------------------------------------------------


def gemma(bench: Bench) -> dict[str, Any]:
    """Gemma 3 270M: are its tokens those of the cpu device, how fast is it, with what launches."""
    path = model_file(bench)
    with tp.open(CPU) as cpu:
        wanted = greedy(bench, path, [cpu])
    found: dict[str, Any] = {}
    for name, count, kv, settings in COMPARED:
        with streams(count, **settings) as backends:
            equal = same(greedy(bench, path, backends, kv), wanted)
        found[f"tokens, {name}"] = bench.figure(
            f"tokens, {name}", sum(equal) / sum(map(len, wanted)), "of all"
        )
        found[f"first tokens, {name}"] = [bench.figure(name, n, "tokens alike") for n in equal]
    bench.ask("gemma tokens", found["tokens, floats"], FLOATS)
    bench.ask("gemma split", found["tokens, split"], FLOATS)
    with streams() as (stream,), load_model(path, [stream]) as model:
        found |= speeds(bench, model)
    with streams(branches=BRANCHES) as (stream,), load_model(path, [stream]) as model:
        report = measured(model, prompt_tokens=1, tokens=bench.sizes.tokens, repeat=REPEAT)
        name, decode = f"decode, {BRANCHES} streams", report.decode_tokens_per_s
        found[name] = bench.figure(name, decode, "tokens/s")
    bench.ask("gemma decode", found["decode tokens"])
    bench.ask("gemma launches", found["launches per step"])
    return found


def model_file(bench: Bench) -> Path:
    """The file that was named, or the one of the installed packages. Raises NotRun."""
    if bench.arguments.gemma is not None:
        return Path(bench.arguments.gemma)
    bench.only_on_a_gpu("time for it; name a small model")
    try:
        return find_model("gemma3-270m")
    except OptionError as error:
        raise NotRun(str(error)) from error


def greedy(
    bench: Bench, path: Path, backends: Sequence[Backend], kv: tp.DType | None = None
) -> list[list[int]]:
    """The likeliest tokens after each prompt."""
    texts = []
    with load_model(path, backends) as model:
        for prompt in PROMPTS:
            with LoneText(model, 256, kv=kv) as text:
                tokens = [int(np.argmax(text.prefill(model.tokenizer.encode(prompt))))]
                while len(tokens) < bench.sizes.greedy:
                    tokens.append(int(np.argmax(text.decode(tokens[-1]))))
            texts.append(tokens)
    return texts


def same(found: list[list[int]], wanted: list[list[int]]) -> list[int]:
    """How many tokens of each text come before the first difference."""
    return [
        next((i for i, (a, b) in enumerate(zip(*pair, strict=True)) if a != b), len(pair[0]))
        for pair in zip(found, wanted, strict=True)
    ]

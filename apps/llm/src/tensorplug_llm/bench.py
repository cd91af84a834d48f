"""`bench`: how fast a model reads a prompt and generates, on the devices it was loaded on."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tensorplug import Backend
from tensorplug.device import SupportsThreads
from tensorplug.errors import OptionError
from tensorplug_llm.engine import Engine
from tensorplug_llm.model import LanguageModel
from tensorplug_llm.sampling import SamplingParams
from tensorplug_llm.stream import Stream

WARM_UP = 8
"""Tokens of the text that decoding continues."""


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Medians of the series; the series themselves are in tokens per second.

    `first_token_s` runs from prompt to first token in a new engine, planning included; `plan_s` is
    the time spent on all plans. `peak_rss_mib` is None where the system does not tell.
    """

    model: str
    device: str
    threads: int
    context: int
    prompt_tokens: int
    tokens: int
    repeat: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    load_s: float
    plan_s: float
    first_token_s: float
    peak_rss_mib: float | None
    prefill_series: tuple[float, ...]
    decode_series: tuple[float, ...]

    def __str__(self) -> str:
        memory = "" if self.peak_rss_mib is None else f", peak memory {self.peak_rss_mib:.0f} MiB"
        return (
            f"{self.model} on {self.device}, {self.threads} threads\n"
            f"prefill {self.prompt_tokens:5} tokens: {self.prefill_tokens_per_s:8.1f} tokens/s "
            f"({_spread(self.prefill_series)})\n"
            f"decode  {self.tokens:5} tokens: {self.decode_tokens_per_s:8.1f} tokens/s "
            f"({_spread(self.decode_series)})\n"
            f"load {self.load_s:.2f} s, plan {self.plan_s:.2f} s, first token "
            f"{self.first_token_s:.2f} s{memory}"
        )


def _spread(series: tuple[float, ...]) -> str:
    return f"{min(series):.1f} to {max(series):.1f} in {len(series)} runs"


def bench(
    model: LanguageModel,
    *,
    prompt_tokens: int = 512,
    tokens: int = 128,
    repeat: int = 5,
    progress: Callable[[int, int], None] | None = None,
) -> BenchReport:
    """Measure one text at a time; each series follows an untimed run. Raises OptionError.

    `progress` is called after each run with the number of runs that are done, and of all.
    """
    for name, value in (("prompt tokens", prompt_tokens), ("tokens", tokens), ("repeat", repeat)):
        if value < 1:
            raise OptionError(f"bench: {name} is {value}; give a number of at least 1")
    needed = max(prompt_tokens + 1, WARM_UP + tokens + 1)
    if needed > model.hparams.context:
        raise OptionError(
            f"bench: a prompt of {prompt_tokens} tokens, and {tokens} that are generated, need a "
            f"context of {needed}, and this model was trained for {model.hparams.context}; give "
            "fewer"
        )
    context = max(needed, min(model.hparams.context, 512))
    with Engine(model, context=context, rows=context, texts=1, threaded=False) as engine:
        runs = 2 * (repeat + 1)
        seconds = []
        for done in range(runs):
            series, number = divmod(done, repeat + 1)
            timed, count = ((_prefill, prompt_tokens), (_decode, tokens))[series]
            seconds.append(timed(engine, count, number))
            if progress is not None:
                progress(done + 1, runs)
        first_token, *prefill = seconds[: repeat + 1]
        _, *decode = seconds[repeat + 1 :]
        return BenchReport(
            model=model.file.path.name,
            device=device_names(model),
            threads=thread_count(model.backends),
            context=engine.context,
            prompt_tokens=prompt_tokens,
            tokens=tokens,
            repeat=repeat,
            prefill_tokens_per_s=float(np.median([prompt_tokens / s for s in prefill])),
            decode_tokens_per_s=float(np.median([tokens / s for s in decode])),
            load_s=model.load_seconds,
            plan_s=engine.plan_seconds,
            first_token_s=first_token,
            peak_rss_mib=peak_memory(),
            prefill_series=tuple(prompt_tokens / s for s in prefill),
            decode_series=tuple(tokens / s for s in decode),
        )


def _prefill(engine: Engine, count: int, number: int) -> float:
    """Seconds from a prompt of `count` tokens to its first token."""
    stream = _text(engine, count, 1, number)
    return stream.times[0] - stream.submitted


def _decode(engine: Engine, count: int, number: int) -> float:
    """Seconds for `count` tokens after the first."""
    times = _text(engine, WARM_UP, count + 1, number).times
    return times[-1] - times[0]


def _text(engine: Engine, prompt_tokens: int, tokens: int, number: int) -> Stream:
    """Run one text. Prompts of two numbers differ from the first token on: none is known."""
    vocabulary = engine.model.tokenizer.vocab_size
    prompt = [(7919 * i + 31 * number + 1) % vocabulary for i in range(prompt_tokens)]
    ends = dict.fromkeys(engine.model.tokenizer.end_of_generation, -math.inf)
    params = SamplingParams(temperature=0, max_tokens=tokens, logit_bias=ends)
    stream = engine.submit(prompt, params)
    stream.result()
    return stream


def device_names(model: LanguageModel) -> str:
    """Names of the devices that hold layers: `opencl:0+cpu:0`."""
    return "+".join(model.placement.counts)


def thread_count(backends: tuple[Backend, ...]) -> int:
    """CPU threads of the first backend that has a setting for them; 0 where none has."""
    return next((b.threads for b in backends if isinstance(b, SupportsThreads)), 0)


def peak_memory() -> float | None:
    """Peak memory of this process in MiB, or None where the system does not tell."""
    status = Path("/proc/self/status")
    if status.exists():
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) / 1024
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415 - does not exist on Windows

    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit

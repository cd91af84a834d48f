"""`bench`: how fast a model reads a prompt and generates, on the devices it was loaded on."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tensorplug import Backend
from tensorplug.device import SupportsThreads
from tensorplug.errors import OptionError
from tensorplug_llm.model import LanguageModel
from tensorplug_llm.session import Session

WARM_UP = 8
"""Tokens of the text that decoding continues."""


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Medians of the series; the series themselves are in tokens per second.

    `first_token_s` runs from prompt to first token in a new session, planning included; `plan_s` is
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
    model: LanguageModel, *, prompt_tokens: int = 512, tokens: int = 128, repeat: int = 5
) -> BenchReport:
    """Measure; one untimed pass per shape goes before each series. Raises OptionError."""
    for name, value in (("prompt tokens", prompt_tokens), ("tokens", tokens), ("repeat", repeat)):
        if value < 1:
            raise OptionError(f"bench: {name} is {value}; give a number of at least 1")
    needed = max(prompt_tokens, WARM_UP + tokens)
    with model.session(max(needed, min(model.hparams.context, 512))) as session:
        prompt = _prompt(prompt_tokens, model.hparams.vocabulary)
        start = time.perf_counter()
        int(np.argmax(session.prefill(prompt)))  # reads every logit, as choosing a token does
        first_token = time.perf_counter() - start

        prefill = tuple(_prefill(session, prompt) for _ in range(repeat))
        session.prepare(1, WARM_UP + tokens)
        decode = tuple(_decode(session, prompt, tokens) for _ in range(repeat))
        return BenchReport(
            model=model.file.path.name,
            device=device_names(model),
            threads=thread_count(model.backends),
            context=session.context,
            prompt_tokens=prompt_tokens,
            tokens=tokens,
            repeat=repeat,
            prefill_tokens_per_s=float(np.median(prefill)),
            decode_tokens_per_s=float(np.median(decode)),
            load_s=model.load_seconds,
            plan_s=session.runner.plan_seconds,
            first_token_s=first_token,
            peak_rss_mib=peak_memory(),
            prefill_series=prefill,
            decode_series=decode,
        )


def _prompt(count: int, vocabulary: int) -> list[int]:
    """Tokens that differ; which ones does not matter."""
    return [(7919 * i + 1) % vocabulary for i in range(count)]


def _prefill(session: Session, prompt: list[int]) -> float:
    session.rewind()
    start = time.perf_counter()
    session.prefill(prompt)
    return len(prompt) / (time.perf_counter() - start)


def _decode(session: Session, prompt: list[int], tokens: int) -> float:
    session.rewind()
    chosen = int(np.argmax(session.prefill(prompt[:WARM_UP])))
    start = time.perf_counter()
    for _ in range(tokens):
        chosen = int(np.argmax(session.decode(chosen)))
    return tokens / (time.perf_counter() - start)


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

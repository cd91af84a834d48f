"""`perplexity`: how well a model predicts a text."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorplug.errors import OptionError
from tensorplug.gguf import Progress
from tensorplug_llm.engine import Engine
from tensorplug_llm.model import LanguageModel

WINDOW = 512
"""Tokens that are read at a time; predictions count in the second half of each window."""


@dataclass(frozen=True, slots=True)
class PerplexityReport:
    """Perplexity with its standard error, over `predicted` of the text's `tokens`."""

    model: str
    perplexity: float
    error: float
    tokens: int
    predicted: int
    windows: int
    window: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"perplexity {self.perplexity:.4f} +- {self.error:.4f}: {self.model}, "
            f"{self.predicted} of {self.tokens} tokens predicted in {self.windows} windows of "
            f"{self.window}, {self.seconds:.1f} s"
        )


def perplexity(
    model: LanguageModel, text: str, *, window: int = WINDOW, progress: Progress | None = None
) -> PerplexityReport:
    """Measure over windows of `window` tokens, the rest of the text left out. Raises OptionError.

    Each window begins with the bos token where the model wants one. A text shorter than a window is
    one window.
    """
    start = time.perf_counter()
    ids = model.tokenizer.encode(text)
    size = min(window, len(ids))
    if size < 5:  # two tokens are predicted, whose losses differ
        raise OptionError(
            f"perplexity: {len(ids)} tokens of text in windows of {window}; at least 5 are needed"
        )
    windows = [ids[i : i + size] for i in range(0, len(ids) - size + 1, size)]
    losses: list[float] = []
    with Engine(model, context=size, rows=size, texts=1, threaded=False) as engine:
        for done, part in enumerate(windows, start=1):
            losses += (-score for score in engine.score(_begun(model, part))[size // 2 :])
            if progress is not None:
                progress(done, len(windows))
    loss = np.array(losses)
    value = math.exp(loss.mean())
    return PerplexityReport(
        model=model.file.path.name,
        perplexity=value,
        error=value * float(loss.std(ddof=1)) / math.sqrt(loss.size),
        tokens=len(ids),
        predicted=loss.size,
        windows=len(windows),
        window=size,
        seconds=time.perf_counter() - start,
    )


def _begun(model: LanguageModel, part: Sequence[int]) -> list[int]:
    """The window as the model reads it: bos takes the place of the first token."""
    bos = model.tokenizer.bos
    return [bos, *part[1:]] if model.tokenizer.add_bos and bos is not None else list(part)

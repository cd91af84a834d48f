"""`perplexity`: how well a model predicts a text."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensorplug.errors import OptionError
from tensorplug_llm.model import LanguageModel
from tensorplug_llm.runner import Logits

WINDOW = 512
"""Tokens that are read at a time; predictions count in the second half of each window."""

Progress = Callable[[int, int], None]


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
    if size < 4:
        raise OptionError(
            f"perplexity: {len(ids)} tokens of text in windows of {window}; at least 4 are needed"
        )
    windows = [ids[i : i + size] for i in range(0, len(ids) - size + 1, size)]
    losses: list[npt.NDArray[np.float64]] = []
    with model.session(size) as session:
        for done, part in enumerate(windows, start=1):
            session.rewind()
            losses.append(_losses(session.score(_begun(model, part)), part))
            if progress is not None:
                progress(done, len(windows))
    loss = np.concatenate(losses)
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


def _losses(pieces: Iterable[Logits], part: Sequence[int]) -> npt.NDArray[np.float64]:
    """Negative log-likelihood of each token of the second half of a window."""
    found, position, first = [], 0, len(part) // 2
    for logits in pieces:
        for row in logits:
            position += 1
            if first < position < len(part):
                found.append(_loss(row, part[position]))
    return np.array(found)


def _loss(logits: Logits, token: int) -> float:
    shifted = logits.astype(np.float64) - float(logits.max())
    return float(np.log(np.exp(shifted).sum()) - shifted[token])

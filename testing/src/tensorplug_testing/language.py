"""A tiny language model with random weights: two layers with all ops that real models use.

The expected text is computed by the float64 reference, once for each kind and seed. Tokens are
sampled with seeded noise, so that the text does not repeat itself and no choice is close to a tie.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import tensorplug as tp
from tensorplug.device import Array, Tensor
from tensorplug_cpu import reference

WIDTH, HIDDEN, VOCAB, LAYERS = 128, 192, 96, 2
HEADS, KV_HEADS, HEAD = 4, 2, 32
SLOTS = 32
"""Rows of the cache, which is the length of the longest text in tokens."""
PROMPT = (5, 17, 2, 60, 33)
TOKENS = 24
"""The number of tokens that are generated after the prompt."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A variant of the model: types of weights and caches, the form of attention, the error limit.

    `limit` bounds the normalised mean square error of the logits of each step. `noise` is a seed
    for which no choice of a token is close to a tie.
    """

    matrices: tp.DType
    embedding: tp.DType
    cache: tp.DType
    flash: bool
    mode: str
    limit: float
    noise: int


KINDS: Mapping[str, Kind] = {
    "f32": Kind(tp.F32, tp.F32, tp.F32, flash=False, mode="normal", limit=2e-3, noise=60),
    "blocks": Kind(tp.Q8_0, tp.Q4_0, tp.F16, flash=True, mode="neox", limit=1e-2, noise=4),
}

Make = Callable[[str, Array, tp.DType], Tensor]
"""A function that makes a leaf from a name (`1.key` is in layer 1), stored values and a type."""


def weights(kind: Kind, seed: int = 0) -> dict[str, tuple[Array, tp.DType]]:
    """The stored values and the type of each weight, by name."""
    rng = np.random.default_rng((2, seed))
    found: dict[str, tuple[Array, tp.DType]] = {}

    def matrix(name: str, rows: int, row: int, dtype: tp.DType) -> None:
        values = rng.uniform(-1, 1, (rows, row)) * (3 / row) ** 0.5
        found[name] = _stored(dtype, values), dtype

    def scales(name: str) -> None:
        found[name] = _stored(tp.F32, rng.uniform(0.5, 1.5, WIDTH)), tp.F32

    matrix("embedding", VOCAB, WIDTH, kind.embedding)
    for i in range(LAYERS):
        scales(f"{i}.norm")
        matrix(f"{i}.query", HEADS * HEAD, WIDTH, kind.matrices)
        matrix(f"{i}.key", KV_HEADS * HEAD, WIDTH, kind.matrices)
        matrix(f"{i}.value", KV_HEADS * HEAD, WIDTH, kind.matrices)
        matrix(f"{i}.output", WIDTH, HEADS * HEAD, kind.matrices)
        scales(f"{i}.ffn_norm")
        matrix(f"{i}.gate", HIDDEN, WIDTH, kind.matrices)
        matrix(f"{i}.up", HIDDEN, WIDTH, kind.matrices)
        matrix(f"{i}.down", WIDTH, HIDDEN, kind.matrices)
    scales("norm")
    matrix("head", VOCAB, WIDTH, kind.matrices)
    return found


def _stored(dtype: tp.DType, values: Array) -> Array:
    slots = reference.encode(dtype, values)
    return slots.astype(np.float32) if dtype is tp.F32 else slots


@dataclass(frozen=True, slots=True)
class Pass:
    """The graph of a pass over some tokens: its inputs, and the logits of the last token."""

    graph: tp.Graph
    logits: Tensor
    ids: Tensor
    positions: Tensor
    rows: Tensor
    mask: Tensor

    def inputs(self, ids: Sequence[int], start: int) -> dict[Tensor, Array]:
        """Values of the inputs for the tokens `ids`, which start at position `start` of a text."""
        positions = np.arange(start, start + len(ids), dtype=np.int32)
        hidden = np.arange(SLOTS) > positions[:, None]
        return {
            self.ids: np.array(ids, np.int32),
            self.positions: positions,
            self.rows: positions,
            self.mask: np.where(hidden, -np.inf, 0).astype(np.float32),
        }


class Model:
    """Weights and caches, made by `make`, and the graphs that use them."""

    def __init__(self, kind: Kind, make: Make, seed: int = 0) -> None:
        self.kind = kind
        self.weights = {
            name: make(name, stored, dtype) for name, (stored, dtype) in weights(kind, seed).items()
        }
        empty = _stored(kind.cache, np.zeros((SLOTS, KV_HEADS * HEAD)))
        names = [f"{i}.{which}" for i in range(LAYERS) for which in ("keys", "values")]
        self.caches = {name: make(name, empty, kind.cache) for name in names}

    def forward(self, tokens: int) -> Pass:
        """The graph of a forward pass over `tokens` tokens."""
        ids, positions, rows = (
            tp.input(name, (tokens,), tp.I32) for name in ("ids", "positions", "rows")
        )
        mask = tp.input("mask", (tokens, SLOTS), tp.F32)
        writes: list[Tensor] = []
        x = tp.get_rows(self.weights["embedding"], ids)
        for i in range(LAYERS):
            mixed = self._attention(
                i, self._normed(f"{i}.norm", x), (positions, rows, mask), writes
            )
            x = x + self._product(f"{i}.output", mixed)
            normed = self._normed(f"{i}.ffn_norm", x)
            gated = tp.swiglu(self._product(f"{i}.gate", normed), self._product(f"{i}.up", normed))
            x = x + self._product(f"{i}.down", gated)
        logits = self._product("head", self._normed("norm", x[tokens - 1 :]))
        return Pass(tp.Graph(logits, effects=writes), logits, ids, positions, rows, mask)

    def _attention(
        self, i: int, x: Tensor, inputs: tuple[Tensor, Tensor, Tensor], writes: list[Tensor]
    ) -> Tensor:
        positions, rows, mask = inputs
        tokens = x.shape[0]
        query, key = (
            tp.rope(
                self._product(f"{i}.{name}", x).reshape(tokens, heads, HEAD),
                positions,
                dims=HEAD,
                mode=self.kind.mode,
            )
            for name, heads in (("query", HEADS), ("key", KV_HEADS))
        )
        new = {"keys": key.reshape(tokens, -1), "values": self._product(f"{i}.value", x)}
        kept = [tp.set_rows(self.caches[f"{i}.{n}"], t, rows) for n, t in new.items()]
        writes.extend(kept)
        q = tp.permute(query, (1, 0, 2))
        k, v = (tp.permute(t.reshape(SLOTS, KV_HEADS, HEAD), (1, 0, 2)) for t in kept)
        if self.kind.flash:
            return tp.flash_attn_ext(q, k, v, mask, scale=HEAD**-0.5).reshape(tokens, -1)
        shares = tp.soft_max(tp.mul_mat(k, q), mask, scale=HEAD**-0.5)
        mixed = tp.mul_mat(tp.cont(tp.transpose(v)), shares)
        return tp.cont(tp.permute(mixed, (1, 0, 2)), (tokens, HEADS * HEAD))

    def _product(self, name: str, x: Tensor) -> Tensor:
        return tp.mul_mat(self.weights[name], x)

    def _normed(self, name: str, x: Tensor) -> Tensor:
        return tp.rms_norm(x) * self.weights[name]


Run = Callable[[Pass, dict[Tensor, Array]], Array]
"""A function that runs a pass and returns the logits of its last token as floats."""


def generate(noise: int, passes: Mapping[int, Pass], run: Run) -> Iterator[tuple[int, Array]]:
    """Yield tokens with their logits, without end. `noise` is the seed of the sampling.

    `passes` has one for the number of tokens of the prompt, and one for a single token.
    """
    ids: Sequence[int] = PROMPT
    start = 0
    while True:
        each = passes[len(ids)]
        logits = run(each, each.inputs(ids, start)).reshape(-1)
        start += len(ids)
        ids = (int(np.argmax(noisy(logits, noise, start))),)
        yield ids[0], logits


def noisy(logits: Array, noise: int, turn: int) -> Array:
    """`logits` with Gumbel noise: their largest is a sample of the next token at temperature 2."""
    return logits + 2 * np.random.default_rng((noise, turn)).gumbel(size=logits.size)


def leaf(name: str, data: Array, dtype: tp.DType) -> Tensor:
    """A leaf without memory, for stored values."""
    row = data.shape[-1] // dtype.size * dtype.block if dtype.is_block else data.shape[-1]
    return tp.input(name, (*data.shape[:-1], row), dtype)


@cache
def wanted(name: str, seed: int = 0) -> tuple[tuple[int, Array], ...]:
    """The tokens and their logits that the reference generates with weights of the kind `name`."""
    kind = KINDS[name]
    stored: dict[Tensor, Any] = {}

    def make(name: str, data: Array, dtype: tp.DType) -> Tensor:
        made = leaf(name, data, dtype)
        stored[made] = data
        return made

    model = Model(kind, make, seed)

    def run(each: Pass, inputs: dict[Tensor, Array]) -> Array:
        memory = reference.execute(each.graph, {**stored, **inputs})
        for cached in model.caches.values():
            slots = memory.window(cached)
            stored[cached] = slots.astype(cached.dtype.storage).reshape(cached.shape)
        return memory.value(each.logits)

    texts = generate(kind.noise, {n: model.forward(n) for n in (len(PROMPT), 1)}, run)
    return tuple(next(texts) for _ in range(TOKENS))

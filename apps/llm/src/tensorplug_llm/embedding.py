"""`Embedder`: texts of unlike length as vectors, several in a pass, by plans of a few shapes."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

import tensorplug as tp
from tensorplug import Graph, Scheduler, Tensor
from tensorplug.device import Resource
from tensorplug.errors import OptionError
from tensorplug.gguf import Progress
from tensorplug_llm.arch import Inputs, Part, Pass
from tensorplug_llm.arch.blocks import linear
from tensorplug_llm.errors import PromptTooLong
from tensorplug_llm.runner import pinned_inputs
from tensorplug_llm.shapes import size_for
from tensorplug_llm.step import Array, Floats, Masks

if TYPE_CHECKING:
    from tensorplug_llm.model import LanguageModel

TOKENS = 768
"""Tokens of a pass over several texts, padding included."""
TEXTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
"""Texts of a pass."""
LENGTHS = (*range(8, 64, 8), *range(64, 256, 16), *range(256, 512, 32))
"""Tokens that texts are padded to; beyond them, multiples of LONG."""
LONG = 128
SHORTEST = 0.75
"""A text joins longer ones only if it has this share of their tokens."""
SMALLEST = np.finfo(np.float32).tiny
PLANS = 64
"""Shapes whose plans are kept."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A pass over `texts`, each padded to `length` tokens."""

    texts: int
    length: int


class Embedder(Resource):
    """Embeds texts of token ids. Belongs to the thread of its model's devices."""

    def __init__(self, model: "LanguageModel", pooling: str | None = None) -> None:
        """Use `pooling` (mean, cls, last or rank), by default the model's own. Raises OptionError.

        Without one, encoders take the mean of the states, other models the last state.
        """
        hp = model.hparams
        if hp.recurrence:
            raise OptionError(
                f"{model.file.path.name}: a model of architecture {hp.architecture} has recurrent "
                "layers, and embedding texts with these is not written; use an encoder"
            )
        self.pooling = pooling or hp.pooling or ("last" if hp.causal else "mean")
        if self.pooling not in POOLINGS:
            raise OptionError(
                f"pooling: {self.pooling!r} gives no vector for a text; choose "
                f"{', '.join(POOLINGS)}"
            )
        if self.pooling == "rank" and not hp.labels:
            raise OptionError(
                f"{model.file.path.name}: has no classification head; it embeds texts but cannot "
                "rank documents"
            )
        self._scheduler = Scheduler(model.backends, buffer_types=pinned_inputs(model.backends))
        super().__init__(model)
        self.model = model
        self._masks = Masks()
        self._plans: OrderedDict[Shape, _Plan] = OrderedDict()

    @property
    def size(self) -> int:
        """Elements of an embedding."""
        hp = self.model.hparams
        return hp.labels if self.pooling == "rank" else hp.embedding

    @property
    def plans(self) -> int:
        """Shapes that are planned."""
        return len(self._plans)

    def embed(
        self,
        texts: Sequence[Sequence[int]],
        *,
        truncate: bool = False,
        progress: Progress | None = None,
    ) -> Floats:
        """Vectors [texts, size] of texts of token ids, not normalized.

        `progress` is called after each pass with the number of texts that are done, and of all.
        Raises OptionError, and PromptTooLong for one beyond the model's context unless `truncate`
        cuts it.
        """
        self.check_open()
        ids = [self._fitting(text, truncate=truncate) for text in texts]
        found = np.empty((len(ids), self.size), np.float32)
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]), reverse=True)
        done = 0
        for group, shape in groups(order, [len(text) for text in ids]):
            found[group] = self._plan(shape).run([ids[i] for i in group])
            done += len(group)
            if progress is not None:
                progress(done, len(ids))
        return found

    def rank(self, pairs: Sequence[Sequence[int]], *, truncate: bool = False) -> Floats:
        """The score of each pair of query and document. Raises OptionError, PromptTooLong."""
        if self.pooling != "rank":
            raise OptionError(
                f"{self.model.file.path.name}: is not a reranker; compare embeddings of query and "
                "documents, or use a model with the pooling type rank"
            )
        scores: Floats = self.embed(pairs, truncate=truncate)[:, 0]
        return scores

    def _fitting(self, ids: Sequence[int], *, truncate: bool) -> Sequence[int]:
        self.model.check_ids(ids)
        most = self.model.hparams.context
        if len(ids) <= most:
            return ids
        if not truncate:
            raise PromptTooLong(
                f"embed: a text has {len(ids)} tokens, and this model reads {most}; split the "
                "text, or cut it with truncate"
            )
        ends = self.model.tokenizer.eos
        return [*ids[: most - 1], ids[-1] if ids[-1] == ends else ids[most - 1]]

    def _plan(self, shape: Shape) -> "_Plan":
        plan = self._plans.pop(shape, None)
        if plan is None:
            while len(self._plans) >= PLANS:
                self._plans.popitem(last=False)[1].close()
            plan = _Plan(self.model, self.pooling, shape, self._masks, self._scheduler)
        self._plans[shape] = plan
        return plan

    def _close(self) -> None:
        for plan in self._plans.values():
            plan.close()
        self._plans.clear()
        self._scheduler.close(force=True)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.plans} plans"
        return f"<Embedder {self.model.file.path.name}, {self.pooling}, {state}>"


def normalized(vectors: Floats) -> Floats:
    """Vectors of length 1; zeros stay zeros."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=-1, keepdims=True)
    scaled: Floats = (vectors / np.maximum(lengths, SMALLEST)).astype(np.float32)
    return scaled


def groups(order: Sequence[int], lengths: Sequence[int]) -> list[tuple[list[int], Shape]]:
    """Texts of each pass and its shape; `order` names texts from the longest to the shortest."""
    found, first = [], 0
    while first < len(order):
        longest = lengths[order[first]]
        padded = (
            size_for(longest, LENGTHS) if longest <= LENGTHS[-1] else -(-longest // LONG) * LONG
        )
        most = max(TOKENS // padded, 1)
        near = [i for i in order[first : first + most] if lengths[i] >= SHORTEST * longest]
        count = max(size for size in TEXTS if size <= len(near))
        found.append((list(near[:count]), Shape(count, padded)))
        first += count
    return found


class _Plan:
    """A planned pass over texts of one shape, and the host arrays of its inputs."""

    def __init__(
        self,
        model: "LanguageModel",
        pooling: str,
        shape: Shape,
        masks: Masks,
        scheduler: Scheduler,
    ) -> None:
        hp, tokens = model.hparams, shape.texts * shape.length
        self._shape, self._causal = shape, hp.causal
        # The last token of a causal model is the only one that saw both texts of a pair.
        self._is_last = pooling == "last" or (pooling == "rank" and hp.causal)
        # Where texts are seen in both directions, the window has its token in the middle.
        reach = hp.window - 1 if hp.causal else hp.window // 2
        self._window = hp.window if hp.local_layers and reach < shape.length - 1 else 0
        self._arrays: dict[Tensor, Array] = {}
        mask = (shape.texts, 1, shape.length, shape.length)
        self._ids = np.zeros(tokens, np.int32)
        # Padding may go beyond the context, and some models have rows for its positions only.
        places = np.minimum(np.arange(shape.length, dtype=np.int32), hp.context - 1)
        positions = np.tile(places, shape.texts)
        self._mask = masks.take(0, mask)
        self._local_mask = masks.take(1, mask) if self._window else self._mask
        self._chosen = np.zeros(shape.texts, np.int32)
        self._shares = np.zeros((shape.texts, shape.length, 1), np.float32)
        seen = self._input("mask", self._mask)
        local = self._input("local_mask", self._local_mask) if self._window else seen
        inputs = Inputs(
            ids=self._input("ids", self._ids),
            positions=self._input("positions", positions),
            rows=self._input("rows", positions),
            parts=(Part(0, tokens, True, seen, local),),  # noqa: FBT003 - a row of a table
            texts=shape.texts,
            types=self._input("types", np.zeros(tokens, np.int32)),
        )
        building = Pass(hp, model.weights.tensors, None, inputs, shape.length, hp.context)
        states = model.architecture.forward(building)
        self._result = dense(building, POOLINGS[pooling](self, building, states))
        graph = Graph(self._result)
        self._schedule = scheduler.schedule(graph, transient=graph.inputs)
        self._feed = {tensor: self._arrays[tensor] for tensor in graph.inputs}

    def mean(self, p: Pass, states: Tensor) -> Tensor:
        """The mean of the states of each text."""
        shape = self._shape
        states = tp.reshape(states, (shape.texts, shape.length, states.ne[0]))
        return tp.sum(tp.mul(states, self._input("shares", self._shares)), axis=1)

    def picked(self, p: Pass, states: Tensor) -> Tensor:
        """The state of one token of each text."""
        return tp.get_rows(states, self._input("chosen", self._chosen))

    def ranked(self, p: Pass, states: Tensor) -> Tensor:
        """What the classification head makes of the state of one token.

        Causal models answer yes or no, with these probabilities.
        """
        x = self.picked(p, states)
        if "cls.weight" in p.weights:
            x = tp.tanh(linear(p, x, "cls"))
        scores = linear(p, x, "cls.output")
        return tp.soft_max(scores) if self._causal else scores

    def _input(self, name: str, array: Array) -> Tensor:
        tensor = tp.input(name, array.shape, array.dtype)
        self._arrays[tensor] = array
        return tensor

    def run(self, texts: Sequence[Sequence[int]]) -> Floats:
        """The vectors of as many texts as the shape has."""
        length = self._shape.length
        ids = self._ids.reshape(-1, length)
        ids.fill(0)
        places = np.arange(length)
        ahead = places - places[:, None]
        for i, text in enumerate(texts):
            count = len(text)
            ids[i, :count] = text
            is_seen = places < count
            self._shares[i, :, 0] = is_seen / np.float32(count)
            if self._causal:
                is_seen = is_seen & (ahead <= 0)
            self._mask[i, 0] = np.where(is_seen, np.float32(0), -np.inf)
            if self._window:
                is_near = -ahead < self._window if self._causal else abs(ahead) <= self._window // 2
                self._local_mask[i, 0] = np.where(is_seen & is_near, np.float32(0), -np.inf)
            self._chosen[i] = i * length + (count - 1 if self._is_last else 0)
        return self._schedule.run(self._feed)[self._result]

    def close(self) -> None:
        """Give the plan back."""
        self._schedule.close()


def dense(p: Pass, x: Tensor) -> Tensor:
    """What the matrices that follow the pooling make of vectors, where a model has some."""
    for name in ("dense_2", "dense_3"):
        if f"{name}.weight" in p.weights:
            x = linear(p, x, name)
    return x


POOLINGS: Mapping[str, Callable[[_Plan, Pass, Tensor], Tensor]] = {
    "mean": _Plan.mean,
    "cls": _Plan.picked,
    "last": _Plan.picked,
    "rank": _Plan.ranked,
}
"""What makes one vector of the states of a text."""

"""`Runner`: reads tokens of any sequences in one forward pass, by plans of a few shapes."""

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

import tensorplug as tp
from tensorplug import Backend, DType, Graph, Scheduler
from tensorplug.device import Buffer, BufferType, Resource
from tensorplug.errors import OptionError
from tensorplug.running import Explanation
from tensorplug_llm.arch import Pass
from tensorplug_llm.cache import PAGE, KVCache, States, cache_types
from tensorplug_llm.hparams import HParams
from tensorplug_llm.shapes import Shapes
from tensorplug_llm.step import Greatest, Masks, Reading, Shape, Step

if TYPE_CHECKING:
    from tensorplug_llm.model import LanguageModel

T = TypeVar("T")
Logits = npt.NDArray[np.float32]

KEPT = 64
"""Logits of a token that devices of other processes send where no more are needed."""


class Runner(Resource):
    """The KV cache of a model, and planned forward passes that read and write it.

    Belongs to one thread, as its scheduler does.
    """

    def __init__(
        self,
        model: "LanguageModel",
        pages: int,
        *,
        most: int,
        context: int,
        kv: DType | None,
        on_failure: str,
        restore: Callable[[], None],
        drafts: Sequence[int] = (),
    ) -> None:
        """Allocate a cache of `pages` for up to `most` texts at once. Raises OutOfMemory.

        No text is longer than `context` tokens. `restore` reads all texts again after a device was
        lost. `drafts` are numbers of tokens read behind the last one of a text.
        """
        hp = model.hparams
        if not (model.architecture.generates and hp.causal):
            raise OptionError(
                f"{model.file.path.name}: a model of architecture {hp.architecture} embeds texts "
                "and continues none; use `LanguageModel.embed` or the command `embed`"
            )
        layers = model.placement.layers
        self._flies = _flies(hp, layers)
        self.lanes = lanes_for(hp, layers)
        """Passes to have in flight."""
        sends = self._flies and model.tokenizer.vocab_size > KEPT
        self.kept = KEPT if sends else 0
        """How many of the greatest logits can be read in place of all; 0: only all."""
        parallel = self.lanes > 1
        self.scheduler = Scheduler(
            model.backends,
            on_failure=on_failure,
            parallel=parallel,
            buffer_types=pinned_inputs(model.backends),
        )
        self.cache, self.states = tables(hp, layers, pages, kv, most)
        # The model closes what is made from it: only now is this whole.
        super().__init__(model)
        self.model = model
        self.context = context
        self.plans = 0
        """Shapes planned so far."""
        self.plan_seconds = 0.0
        """Time spent on building and planning graphs so far."""
        self.shapes = Shapes(most, self.cache.rows, drafts)
        self._masks = Masks()
        self._steps: dict[Shape, Step] = {}
        self._copy: _Copy | None = None
        self.scheduler.add_sources({**model.sources(), **self.cache.sources()})
        kept = self.states.tensors if self.states else ()
        # A pass writes rows before it reads them, except where it goes on from states.
        repeats = self.states is None
        self.scheduler.add_states((*self.cache.tensors, *kept), self.restore, repeats=repeats)
        self._restore = restore
        self.restored = 0
        """How often the cache and the states were restored after a loss."""

    def restore(self) -> None:
        """Read all texts again, into the cache and the states."""
        self.restored += 1
        self._restore()

    def run(self, readings: Sequence[Reading]) -> list[Logits]:
        """Read tokens; return for each reading the logits [wanted, vocabulary] that it wants."""
        if self.states is None:
            return self.step(self.shapes.of(readings)).run(readings)
        groups = one_prompt_each(readings)
        while True:
            before = self.restored
            found: dict[int, Logits] = {}
            for numbers in groups:
                part = [readings[i] for i in numbers]
                logits = self.step(self.shapes.of(part)).run(part)
                found |= dict(zip(numbers, logits, strict=True))
            if len(groups) == 1 or self.restored == before:
                return [found[i] for i in range(len(readings))]
            # The states are those before the step, but of what was read since a device was lost.
            self.restore()

    def submit(
        self, readings: Sequence[Reading], needed: int = 0
    ) -> Callable[[], Sequence[Logits | Greatest]]:
        """Do what `run` does; where devices are those of other processes, queue it.

        Returns a function that waits for the logits. Where the `needed` greatest are enough, the
        rest may be left out.
        """
        if self._flies:
            kept = self.kept if 0 < needed <= self.kept else 0
            return self._begin(replace(self.shapes.of(readings), kept=kept), readings)
        logits = self.run(readings)
        return lambda: logits

    def _begin(
        self, shape: Shape, readings: Sequence[Reading]
    ) -> Callable[[], Sequence[Logits | Greatest]]:
        """Queue a pass of a shape, or run it."""
        step = self.step(shape)
        if self._flies:
            return step.submit(readings)
        logits = step.run(readings)
        return lambda: logits

    def copy_rows(self, source: int, target: int, count: int) -> None:
        """Copy the first `count` rows of page `source` to page `target`, in all layers."""
        self._planned_copy().run(source, target, count)

    def step(self, shape: Shape) -> Step:
        """The planned pass of a shape, planned now where it is new."""
        step = self._steps.get(shape)
        if step is None:
            step = self._steps[shape] = self._timed(lambda: self._plan(shape))
        return step

    def explain(self) -> Explanation | None:
        """What runs where in the planned pass of the fewest tokens; None before the first one."""
        steps = list(self._steps.values())  # the thread of the runner may be planning one
        return min(steps, key=lambda step: step.shape.tokens).explain() if steps else None

    def prepare(self) -> Iterator[None]:
        """Plan all shapes that readings can need, one each time that the iterator is asked."""
        if self.states is None:  # rows of texts with recurrent states are never copied
            self._planned_copy()
        for shape in self.shapes.all():
            for each in dict.fromkeys((replace(shape, kept=self.kept), shape)):
                if each not in self._steps:
                    # Buffers are bound when a pass first runs, for each of those in flight.
                    for logits in [self._begin(each, ()) for _ in range(self.lanes)]:
                        logits()
                    yield

    def _plan(self, shape: Shape) -> Step:
        model = self.model
        step = Step(shape, self._masks, model.hparams, padding_row=self.cache.padding_row)
        building = Pass(
            model.hparams,
            model.weights.tensors,
            self.cache,
            step.inputs,
            shape.reach,
            self.context,
            self.states,
        )
        vocabulary = model.tokenizer.vocab_size
        step.plan(model.architecture.forward, building, self.scheduler, vocabulary)
        return step

    def _planned_copy(self) -> "_Copy":
        if self._copy is None:
            self._copy = self._timed(lambda: _Copy(self.cache, self.scheduler))
        return self._copy

    def _timed(self, plan: Callable[[], T]) -> T:
        start = time.perf_counter()
        collects = gc.isenabled()
        gc.disable()  # plans are thousands of objects that stay: a collection took 70 ms
        try:
            return plan()
        finally:
            if collects:
                gc.enable()
            self.plans += 1
            self.plan_seconds += time.perf_counter() - start

    def _close(self) -> None:
        for step in self._steps.values():
            step.close()
        self._steps.clear()
        self.scheduler.close(force=True)
        self.cache.close()
        if self.states is not None:
            self.states.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.cache.pages} pages, {self.plans} plans"
        return f"<Runner {self.model.file.path.name}, {state}>"


def _flies(hp: HParams, layers: Iterable[Backend]) -> bool:
    """Whether passes are queued: all layers are on devices of other processes."""
    # A text's states after a pass cannot be told from those before it.
    return hp.recurrence is None and all(backend.device.remote for backend in layers)


def lanes_for(hp: HParams, layers: Iterable[Backend]) -> int:
    """Passes to have in flight: one for each stage, and one that waits where another ends.

    1 where passes are not queued, or where one device has all `layers`.
    """
    stages = dict.fromkeys(layers)
    return len(stages) + 1 if len(stages) > 1 and _flies(hp, stages) else 1


def pinned_inputs(backends: Sequence[Backend]) -> dict[Backend, BufferType]:
    """Memory for the inputs: that for transfers of the first device that has some, or none.

    The masks of a prompt are megabytes: pageable memory is copied to a GPU at a tenth of the bus's
    speed. The inputs of a token are small: in this memory one transfer takes all of them.
    """
    *others, last = backends
    for device in (backend.device for backend in others):
        kind = device.host_buffer_type
        if kind is not None and last.device.supports_buffer_type(kind):
            return {last: kind}
    return {}


def tables(
    hp: HParams,
    layers: Sequence[Backend],
    pages: int,
    kv: DType | None,
    texts: int,
    make: Callable[[BufferType, int], Buffer] | None = None,
) -> tuple[KVCache, States | None]:
    """The cache of `pages`, and what recurrent layers keep of `texts`.

    Raises OptionError, OutOfMemory.
    """
    homes = {i: layers[i].buffer_type for i in range(hp.layers)}
    attending = {i: homes[i] for i in hp.attention_layers}
    cache = KVCache(hp, pages, attending, cache_types(hp, layers, kv), make)
    if hp.recurrence is None:
        return cache, None
    try:
        recurrent = {i: homes[i] for i in sorted(hp.recurrence.layers)}
        return cache, States(hp.recurrence, texts, recurrent, make)
    except BaseException:
        cache.close()
        raise


def one_prompt_each(readings: Sequence[Reading]) -> list[list[int]]:
    """The numbers of readings by pass, where a pass has single tokens and one piece of a prompt.

    Recurrent layers take texts of equal length: pieces of several prompts are read in turn.
    """
    singles = [i for i, reading in enumerate(readings) if reading.is_single]
    prompts = [i for i, reading in enumerate(readings) if not reading.is_single]
    return [[*singles, *prompts[:1]], *([i] for i in prompts[1:])]


class _Copy:
    """The planned copy of a page to another."""

    def __init__(self, cache: KVCache, scheduler: Scheduler) -> None:
        self._padding_row = cache.padding_row
        self._source = tp.input("source", (PAGE,), tp.I32)
        self._target = tp.input("target", (PAGE,), tp.I32)
        graph = Graph((), effects=cache.copies(self._source, self._target))
        self._schedule = scheduler.schedule(graph, transient=graph.inputs)

    def run(self, source: int, target: int, count: int) -> None:
        rows = np.arange(PAGE, dtype=np.int32)
        targets = np.where(rows < count, target * PAGE + rows, self._padding_row)
        self._schedule.run({self._source: source * PAGE + rows, self._target: targets})

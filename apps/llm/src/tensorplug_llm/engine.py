"""`Engine`: many texts of one model at once, from any threads; one thread of its own computes."""

import atexit
import contextlib
import os
import threading
from collections.abc import Container, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from tensorplug import Backend, DType, Graph
from tensorplug.device import Resource
from tensorplug.errors import Closed, OptionError, TensorplugError
from tensorplug.running import Explanation
from tensorplug_llm.batching import Batcher, Text
from tensorplug_llm.cache import PAGE, pages_of
from tensorplug_llm.errors import EngineFailed, PromptTooLong
from tensorplug_llm.model import LanguageModel
from tensorplug_llm.sampling import (
    GrammarConstraint,
    Grammars,
    Sampler,
    SamplingParams,
    check_biases,
)
from tensorplug_llm.state import StateFile
from tensorplug_llm.stream import Stream, Wakes

DONE = object()
CONTEXTS = 2
"""Texts of the whole context that the cache has room for, unless `rows` says otherwise."""


class QueueFull(TensorplugError):
    """More texts wait than the engine takes; submit again later."""


@dataclass(frozen=True, slots=True)
class Load:
    """Texts that run and that wait, and the pages of the cache that the running ones hold."""

    running: int
    waiting: int
    pages: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds and rates of texts of one prompt; planning counts into what it delayed."""

    load_s: float
    plan_s: float
    prompt_tokens: int
    prefill_s: float
    generated_tokens: int
    decode_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float


class Engine(Resource):
    """Generates many texts together; `submit` one and iterate over its tokens.

    The texts share the forward passes, the rows of the cache and the pages of equal beginnings.
    Other texts change the logits of a text by roundings of the kernels only. Devices of the model
    belong to the thread of the engine until it is closed.
    """

    def __init__(  # noqa: PLR0913 - a program names only what it wants otherwise
        self,
        model: LanguageModel,
        *,
        context: int | None = None,
        rows: int | None = None,
        texts: int = 32,
        queue: int = 1024,
        kv: DType | None = None,
        on_failure: str = "raise",
        slowdown: float = 1.75,
        pause: float = 0.0,
        prompt_lookup: int = 0,
        groups: int = 1,
        threaded: bool = True,
    ) -> None:
        """Run up to `texts` at once, each of up to `context` tokens; up to `queue` more may wait.

        The cache holds `rows` tokens of all texts, as type `kv`, one of `cache.KV_TYPES`. With
        `on_failure` "replan" all texts go on where a device fails, on those that are left. Prompts
        are read in pieces that let a token of other texts take up to `slowdown` times as long, or
        up to `pause` seconds where that is more: larger pieces are read faster.
        A text that runs by itself reads up to `prompt_lookup` tokens in advance that it repeats:
        fewer passes, chosen by the same sampler. Models with recurrent layers refuse it.
        Running texts go through several devices of other processes in `groups` that follow each
        other, so that all these devices have work: at most as many groups as devices.
        With `threaded` False whoever reads a stream computes, for programs of one thread.
        Raises OptionError, OutOfMemory.
        """
        self.context = model.context_of(context)
        pages = pages_of(CONTEXTS * self.context if rows is None else rows)
        for name, value in (("rows", pages), ("texts", texts), ("queue", queue)):
            if value < 1:
                raise OptionError(f"Engine: {name} must be at least 1")
        self.context = min(self.context, pages * PAGE)
        self._batcher = Batcher(
            model,
            pages,
            most=texts,
            context=self.context,
            kv=kv,
            on_failure=on_failure,
            slowdown=slowdown,
            pause=pause,
            prompt_lookup=prompt_lookup,
            groups=groups,
        )
        super().__init__(model)
        self.model = model
        self._grammars = Grammars(model.tokenizer)
        self._most = texts
        self._queue = queue
        self._wakes = Wakes()
        self._arrived: list[Text] = []
        self._returning: list[tuple[Backend, Future[None]]] = []
        """Streams to take back, see `take_back`."""
        self._prepared: list[threading.Event] = []
        """To be set when all shapes are planned."""
        self._ending = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._shapes = self._batcher.runner.prepare()
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._serve, name="tensorplug-llm", daemon=True)
            self._thread.start()
        # A thread must not call a driver while the interpreter ends.
        atexit.register(self.close)

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        shown: Container[int] = (),
    ) -> Stream:
        """Continue a prompt of token ids once; texts of higher `priority` go first.

        It ends with the token that completes a stop string. The text of the stream has control
        tokens only where they are `shown`. Raises OptionError, PromptTooLong, QueueFull.
        """
        once = replace(params or SamplingParams(), n=1)
        (stream,) = self.submit_all([prompt], once, priority=priority, shown=shown)
        return stream

    def submit_all(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        *,
        priority: int = 0,
        shown: Container[int] = (),
    ) -> list[Stream]:
        """Continue each prompt `params.n` times, or none of them where one is refused.

        A prompt is read once. Raises OptionError, PromptTooLong, QueueFull.
        """
        constraint = self._grammars.constraint(params)
        return self._take(
            [
                self._text(prompt, params, constraint and constraint.copy(), priority, index, shown)
                for prompt in prompts
                for index in range(params.n)
            ]
        )

    def score(self, prompt: Sequence[int], *, priority: int = 0) -> list[float]:
        """Wait for the log probability of each token of a prompt after the first.

        Raises OptionError, PromptTooLong, QueueFull.
        """
        text, stream = self._text(prompt, SamplingParams(), None, priority, 0, (), scored=True)
        self._take([(text, stream)])
        stream.result()
        if stream.finish == "cancelled":
            raise Closed(f"{self!r}: was closed before the prompt was read; make a new one")
        assert text.scores is not None
        return text.scores

    def decode_graph(self) -> Graph:
        """The graph of a pass that reads one token. For engines that are not `threaded`."""
        return self._batcher.decode_graph()

    def prepare(self) -> threading.Event:
        """Plan all shapes of passes while no text runs; return what is set when that is done.

        Later passes plan nothing. A plan takes about 60 ms and 3 MB for a model of 30 layers.
        """
        done = threading.Event()
        with self._changed:
            self._check_serving()
            self._prepared.append(done)
            self._changed.notify_all()
        while self._thread is None and not done.is_set():
            self._turn()
        return done

    def _text(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        constraint: GrammarConstraint | None,
        priority: int,
        index: int,
        shown: Container[int],
        *,
        scored: bool = False,
    ) -> tuple[Text, Stream]:
        """A text and its stream, not submitted yet."""
        self.model.check_ids(prompt)
        check_biases(params, self.model.tokenizer.vocab_size)
        if len(prompt) + (not scored) > self.context:
            raise PromptTooLong(
                f"prompt: {len(prompt)} tokens leave no room in the context of {self.context} "
                "tokens; shorten the prompt, or ask for a larger context: this model can have "
                f"{self.model.hparams.context}"
            )
        wanted = self.context if params.max_tokens is None else len(prompt) + params.max_tokens
        compute = self._turn if self._thread is None else None
        stream = Stream(prompt, lambda: self._cancel(text), self._wakes, compute)
        text = Text(
            prompt,
            Sampler(params, index=index, constraint=constraint),
            stream,
            self.model.tokenizer.stream(stop=params.stop, shown=shown),
            limit=min(wanted, self.context),
            priority=priority,
            scored=scored,
        )
        return text, stream

    def _take(self, made: Sequence[tuple[Text, Stream]]) -> list[Stream]:
        """Let texts wait for their turn. Raises QueueFull unless there is room for all."""
        with self._changed:
            self._check_serving()
            load = self.load
            waiting = max(load.running + load.waiting - self._most, 0)
            if load.running + load.waiting + len(made) > self._most + self._queue:
                raise QueueFull(
                    f"engine: {waiting} texts wait already, and of {len(made)} more not all fit "
                    f"the queue of {self._queue}; submit again when some have ended"
                )
            self._arrived += [text for text, _ in made]
            self._changed.notify_all()
        return [stream for _, stream in made]

    @property
    def plans(self) -> int:
        """Shapes of passes planned so far; it stops growing when the load repeats."""
        return self._batcher.runner.plans

    def save_state(self, path: str | os.PathLike[str], ids: Sequence[int]) -> int:
        """Write what the model keeps of a text that was read; return its number of tokens.

        That is the beginning of `ids` that is still in the cache; nothing is written where it is
        empty. Recurrent layers know a text only up to its last token that was read, which `ids`
        must reach. For engines without a thread of their own. Raises OptionError.
        """
        return self._batcher.save(self._state(path), ids)

    def check_state(self, path: str | os.PathLike[str]) -> None:
        """Raise OptionError where `save_state` would refuse the file, before a text is read."""
        self._state(path).check()

    def load_state(self, path: str | os.PathLike[str]) -> int:
        """Let prompts that begin as the text of `save_state` read only the rest.

        Returns the number of tokens that the cache has room for. Where layers are recurrent, that
        is all or 0, and one prompt that begins with all of them goes on from there. For engines
        without a thread of their own. Raises FormatError for a damaged file and for one of another
        model, OptionError.
        """
        return self._batcher.load(self._state(path))

    def _state(self, path: str | os.PathLike[str]) -> StateFile:
        self._check_serving()
        if self._thread is not None:
            raise OptionError("Engine: states are saved and loaded where threaded=False")
        return self._batcher.state(Path(path))

    def explain(self) -> Explanation | None:
        """What runs where in the planned pass of the fewest tokens; None before the first one."""
        return self._batcher.runner.explain()

    @property
    def plan_seconds(self) -> float:
        """Time spent on these plans."""
        return self._batcher.runner.plan_seconds

    @property
    def load(self) -> Load:
        """What runs and waits now."""
        running = list(self._batcher.running)
        waiting = len(self._batcher.waiting) + len(self._arrived)
        return Load(len(running), waiting, len({page for text in running for page in text.pages}))

    @property
    def failure(self) -> BaseException | None:
        """The error that ended all texts; the engine takes no more of them then."""
        return self._failure

    @property
    def lost(self) -> tuple[str, ...]:
        """Names of the devices that failed and without which the texts go on."""
        left = [backend.name for backend in self._batcher.runner.scheduler.backends]
        return tuple(b.name for b in self.model.backends if b.name not in left)

    def take_back(self, backend: Backend) -> "Future[None]":
        """Compute on `backend` too, a new stream in place of a lost one of its name.

        It happens between two passes, as `Scheduler.take_back` describes; the future ends then.
        """
        done: Future[None] = Future()
        with self._changed:
            self._check_serving()
            self._returning.append((backend, done))
            self._changed.notify_all()
        return done

    def _check_serving(self) -> None:
        self.check_open()
        if self._ending:
            raise Closed(f"{self!r}: is closed; make a new one")
        if self._failure is not None:
            raise EngineFailed(
                f"engine: failed on an earlier text: {self._failure}; make a new one, or start the "
                "server again"
            ) from self._failure

    def _cancel(self, text: Text) -> None:
        with self._changed:
            text.cancelled = True
            self._changed.notify_all()

    def _serve(self) -> None:
        """The engine's thread: sleeps while there is nothing to compute."""
        with contextlib.suppress(Exception):  # streams raise it where they are read
            while self._turn():
                pass
        self._end()

    def _turn(self) -> bool:
        """What `_compute` does; an error of it ends all texts."""
        try:
            return self._compute()
        except Exception as error:
            with self._changed:
                self._failure = error
            self._end()
            raise

    def _compute(self) -> bool:
        """Wait for something to compute and do a part of it; return False where the engine ends."""
        if not self._take_arrived():
            return False
        while self._returning:
            backend, done = self._returning.pop(0)
            try:
                self._batcher.runner.scheduler.take_back(backend)
            except TensorplugError as error:
                done.set_exception(error)
            else:
                done.set_result(None)
        if self._batcher.busy:
            self._batcher.step()
            self._wakes.send()
        elif next(self._shapes, DONE) is DONE:
            self._end_preparing()
        return True

    def _end(self) -> None:
        """End all texts, and whoever waits for plans."""
        with self._changed:
            arrived, self._arrived = self._arrived, []
            returning, self._returning = self._returning, []
        for _, done in returning:
            done.cancel()
        self._end_preparing()
        batcher = self._batcher
        for text in [*batcher.running, *batcher.waiting, *arrived]:
            text.sink.end("cancelled" if self._failure is None else "failed", self._failure)
        self._wakes.send()

    def _end_preparing(self) -> None:
        with self._changed:
            for done in self._prepared:
                done.set()
            self._prepared.clear()

    def _take_arrived(self) -> bool:
        """Wait for something to do; return False where the engine ends."""
        with self._changed:
            while not (
                self._ending
                or self._arrived
                or self._prepared
                or self._returning
                or self._batcher.busy
            ):
                self._changed.wait()
            for text in self._arrived:
                self._batcher.add(text)
            self._arrived = []
            return not self._ending

    def _close(self) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        if self._thread is None:
            self._end()
        elif threading.current_thread() is not self._thread:
            self._thread.join()
        atexit.unregister(self.close)
        self._batcher.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._batcher.running)} texts"
        return f"<Engine {self.model.file.path.name}, {state}>"


def timings_of(engine: Engine, streams: Sequence[Stream]) -> Timings:
    """Timings of texts of one prompt that have ended."""
    begin = streams[0].submitted
    times = sorted(time for stream in streams for time in stream.times)
    first, last = (times[0], times[-1]) if times else (begin, begin)
    size = len(streams[0].prompt)
    return Timings(
        load_s=engine.model.load_seconds,
        plan_s=engine.plan_seconds,
        prompt_tokens=size,
        prefill_s=first - begin,
        generated_tokens=len(times),
        decode_s=last - first,
        prefill_tokens_per_s=_rate(size, first - begin),
        # First tokens of texts come from the pass that reads the prompt.
        decode_tokens_per_s=_rate(sum(len(s.times[1:]) for s in streams), last - first),
    )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0

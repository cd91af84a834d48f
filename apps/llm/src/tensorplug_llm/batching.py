"""`Batcher`: which tokens of which sequences the next pass reads, and what comes of them."""

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tensorplug import DType, Graph
from tensorplug.errors import FormatError, OptionError
from tensorplug_llm.arch.blocks import rope_factors
from tensorplug_llm.cache import PAGE, PagePool, pages_of
from tensorplug_llm.lookup import PromptLookup, draft_sizes
from tensorplug_llm.prefixes import Match, Prefixes
from tensorplug_llm.resting import Rest, RestingTexts
from tensorplug_llm.runner import Logits, Runner, lanes_for
from tensorplug_llm.sampling import Sampled, Sampler
from tensorplug_llm.sampling.rules import log_sum
from tensorplug_llm.shapes import ENDING, MIXED, size_for
from tensorplug_llm.state import StateFile, fingerprint
from tensorplug_llm.step import Greatest, Reading
from tensorplug_llm.tokenizer import StreamDecoder

if TYPE_CHECKING:
    from tensorplug_llm.model import LanguageModel

LEAST_COPIED = 8
"""Rows of a partly known page that are worth a copy."""
REMEMBERED = 7
"""Passes of one kind whose times are kept."""
FORGOTTEN = 0.995
"""What is left, after each pass, of the time that a larger one took."""
CHUNK = 64
"""Tokens of prompts of a pass where several passes are in flight: pieces of one prompt, too."""
MOST_LOGITS = 1 << 25
"""Logits of a pass that scores a prompt: 128 MiB."""


class Sink(Protocol):
    """Receives the tokens of a text, the characters that they complete, and its end."""

    def put(self, sampled: Sampled, text: str) -> None: ...
    def end(self, finish: str, error: BaseException | None = None, *, text: str = "") -> None: ...


class Text:
    """One sequence: its tokens, and the pages that hold the rows of the first `read` of them."""

    def __init__(
        self,
        prompt: Sequence[int],
        sampler: Sampler,
        sink: Sink,
        decoder: StreamDecoder,
        *,
        limit: int,
        priority: int = 0,
        scored: bool = False,
    ) -> None:
        """`limit` is the number of tokens after which it ends, the prompt included.

        The `decoder` ends it where it finds a stop string. A text that is `scored` gets `scores`
        and no further tokens.
        """
        self.ids = list(prompt)
        self.sampler = sampler
        self.sink = sink
        self.decoder = decoder
        self.limit = limit
        self.priority = priority
        self.order = 0
        self.prompt_tokens = len(self.ids)
        self.read = 0
        self.pages: list[int] = []
        self.slot = -1
        """Where recurrent layers keep their states of the text while it runs."""
        self.scores = [0.0] * (len(self.ids) - 1) if scored else None
        """Log probability of each token after the first, by the tokens before it."""
        self.stay = 0
        """How often it has left the batch."""
        self.cancelled = False
        self.lookup: PromptLookup | None = None
        """Drafts tokens of the text, where the batcher wants drafts."""

    @property
    def unread(self) -> int:
        """Tokens that must be read before the next one can be chosen, those in flight apart."""
        return len(self.ids) - self.read

    def score(self, start: int, logits: Logits) -> None:
        """Note scores by the logits of the tokens from number `start` on."""
        assert self.scores is not None
        for place, row in enumerate(logits[: len(self.scores) - start], start):
            self.scores[place] = float(row[self.ids[place + 1]]) - log_sum(row)

    def __lt__(self, other: "Text") -> bool:
        """Texts of higher priority come first, then those that came first."""
        return (-self.priority, self.order) < (-other.priority, other.order)


class Pace:
    """How many tokens of prompts a pass may read while other texts wait for their next token.

    As many as let it take up to `slowdown` times as long as passes without them, or up to `pause`
    seconds where that is more. What sizes add to a pass is measured; for sizes not measured yet it
    is taken as proportional to the tokens. The next larger size is tried again after a while.
    Medians: one pass in 20 or so takes five times as long, because other programs took a processor.
    """

    def __init__(self, slowdown: float, pause: float = 0.0) -> None:
        self._slowdown, self._pause = slowdown, pause
        self._alone = deque[float](maxlen=REMEMBERED)
        """Seconds of passes without tokens of prompts."""
        self._added: dict[int, deque[float]] = {}
        """Seconds that tokens of prompts add to a pass, by size of their part of the shape."""
        self.tokens = MIXED[2]
        """Tokens of prompts for the next pass."""

    def note(self, joined: int, seconds: float) -> None:
        """Learn from a pass with single tokens and `joined` tokens of prompts."""
        if not joined:
            self._alone.append(seconds)
            return
        if not self._alone:
            return
        alone, size = median(self._alone), size_for(joined, MIXED)
        self._added.setdefault(size, deque(maxlen=REMEMBERED)).append(max(seconds - alone, 0.0))
        most = max(self._slowdown * alone, self._pause) - alone
        fitting = [size for size in MIXED if self._estimate(size) <= most]
        self.tokens = max(fitting, default=MIXED[0])
        self._forget(next((size for size in MIXED if size > self.tokens), 0))

    def _estimate(self, size: int) -> float:
        """Seconds that this many tokens add, by the next smaller size that was measured."""
        known = max((n for n in self._added if n <= size), default=min(self._added))
        return median(self._added[known]) * size / known

    def _forget(self, size: int) -> None:
        if size in self._added:
            self._added[size] = deque((FORGOTTEN * s for s in self._added[size]), REMEMBERED)


class _Flight(NamedTuple):
    """A pass that was begun: its readings, and what is to be done when it ends."""

    batch: Sequence[tuple[Text, Reading]]
    stays: Sequence[int]
    """The `stay` of each text: it is another one where the text left the batch meanwhile."""
    logits: Callable[[], Sequence[Logits | Greatest]]
    start: float
    joined: int | None
    """Tokens of prompts, in addition to single ones; None if its time tells nothing of the pace."""


class Batcher:
    """Continuous batching: texts join and leave between passes. Belongs to one thread.

    Each pass reads the last token of every text that is being continued, and pieces of prompts.
    Equal beginnings share pages, but not in models with recurrent layers: these would need their
    states at that token, and go on from texts that stopped. Where pages run out, prefixes that no
    text uses and texts that stopped are given up, then the text of the lowest priority that came
    last is put back and read again later.

    While one text runs, a pass may also read tokens that `PromptLookup` drafts. The rows of wrong
    ones are hidden from all tokens, until the tokens that take their positions overwrite them.
    """

    def __init__(  # noqa: PLR0913 - those of the engine
        self,
        model: "LanguageModel",
        pages: int,
        *,
        most: int,
        context: int | None = None,
        kv: DType | None = None,
        on_failure: str = "raise",
        slowdown: float = 1.75,
        pause: float = 0.0,
        prompt_lookup: int = 0,
        groups: int = 1,
    ) -> None:
        """Run up to `most` texts at once in a cache of `pages`. Raises OptionError, OutOfMemory.

        No text is longer than `context` tokens, by default all pages.
        """
        self._draft_sizes = draft_sizes(prompt_lookup, model.hparams)
        most_groups = max(lanes_for(model.hparams, model.placement.layers) - 1, 1)
        if not isinstance(groups, int) or not 1 <= groups <= most_groups:
            needs = "more need all layers on several devices of other processes, and none recurrent"
            if most_groups > 1:
                needs = "for each device one"
            raise OptionError(f"groups is {groups}; give 1 to {most_groups} here: {needs}")
        self.runner = Runner(
            model,
            pages,
            most=most,
            context=context or pages * PAGE,
            kv=kv,
            on_failure=on_failure,
            restore=self._restore,
            drafts=self._draft_sizes,
        )
        self._groups = groups
        """Groups of running texts, each of which has a pass in flight."""
        self.pool = PagePool(pages)
        self.prefixes = Prefixes(self.pool)
        self.waiting: list[Text] = []
        self.running: list[Text] = []
        self.preempted = 0
        """How often a text was put back."""
        self.reused = 0
        """Tokens of prompts that were in the cache already."""
        self.drafted = 0
        """Tokens that passes read as drafts."""
        self.accepted = 0
        """Those of them that were right: each saved a pass."""
        self._most = most
        self.resting = RestingTexts(self.pool, most) if model.hparams.recurrence else None
        """Texts to go on from, where layers are recurrent; these share no beginnings."""
        self._most_scored = max(MOST_LOGITS // model.hparams.vocabulary, 1)
        self._tokenizer = model.tokenizer
        self._pace = Pace(slowdown, pause)
        self._order = itertools.count()
        self._flights: deque[_Flight] = deque()
        """Passes that were begun, the oldest first."""
        self._landed = 0.0
        """When the last pass ended."""

    def add(self, text: Text) -> None:
        """Let a text wait for its turn."""
        text.order = next(self._order)
        if self._draft_sizes:
            text.lookup = PromptLookup(self._draft_sizes)
        heapq.heappush(self.waiting, text)

    @property
    def busy(self) -> bool:
        """Whether a text is not finished."""
        return bool(self.waiting or self.running or self._flights)

    def step(self) -> None:
        """Admit texts, run one pass, choose tokens and end the texts that are complete.

        With several lanes the pass is queued, and the oldest one in flight is waited for.
        """
        self._drop_cancelled()
        self._admit()
        batch = self._compose()
        if batch:
            self._flights.append(self._begin(batch))
        if self._flights and (len(self._flights) >= self.runner.lanes or not batch):
            self._land(self._flights.popleft())

    def _begin(self, batch: list[tuple[Text, Reading]]) -> "_Flight":
        """Run a pass, or queue it."""
        start, plans = time.perf_counter(), self.runner.plans
        logits = self.runner.submit([reading for _, reading in batch], _needed(batch))
        for text, reading in batch:
            text.read += min(len(reading.ids), text.unread)  # what is drafted comes behind
            is_prompt = text.read == text.prompt_tokens and text.scores is None
            if is_prompt and self.resting is None:
                self.prefixes.insert(text.ids[: text.read], text.pages)
        joined = [len(reading.ids) for _, reading in batch if not reading.is_single]
        is_paced = len(joined) < len(batch) and plans == self.runner.plans
        stays = [text.stay for text, _ in batch]
        return _Flight(batch, stays, logits, start, sum(joined) if is_paced else None)

    def _land(self, flight: "_Flight") -> None:
        """Wait for a pass and continue its texts."""
        logits = flight.logits()
        now = time.perf_counter()
        if flight.joined is not None:
            self._pace.note(flight.joined, now - max(flight.start, self._landed))
        self._landed = now
        for (text, reading), stay, rows in zip(flight.batch, flight.stays, logits, strict=True):
            if text.stay != stay:
                continue  # it was cancelled or put back meanwhile
            if text.scores is not None:
                assert not isinstance(rows, Greatest)
                text.score(reading.start, rows)
                if reading.start + len(reading.ids) == len(text.ids):
                    self._end(text, "length")
            elif reading.wanted:
                self._continue(text, rows, reading.ids[len(text.ids) - reading.start :])

    # --- who runs ----------------------------------------------------------------------------

    def _drop_cancelled(self) -> None:
        for text in [t for t in self.running if t.cancelled]:
            self._end(text, "cancelled")
        gone = [t for t in self.waiting if t.cancelled]
        if gone:
            self.waiting = [t for t in self.waiting if not t.cancelled]
            heapq.heapify(self.waiting)
            for text in gone:
                self._end(text, "cancelled")

    def _admit(self) -> None:
        """Let waiting texts run while there is room, or texts of lower priority to put back."""
        while self.waiting:
            text = self.waiting[0]
            is_scored = text.scores is not None
            match = self.prefixes.find(() if is_scored else text.ids[:-1])
            if not is_scored and self._is_being_read(text, match.tokens):
                return
            needed = pages_of(len(text.ids) + 1) - len(match.pages)
            reused = sum(self.pool.holders[page] == 1 for page in match.pages)
            room = self.pool.free + self.prefixes.evictable - reused
            if len(self.running) == self._most or (self.running and needed > room):
                lowest = max(self.running)
                if lowest.priority >= text.priority:
                    return
                self._preempt(lowest)
                continue
            heapq.heappop(self.waiting)
            self._start(text, match)

    def _is_being_read(self, text: Text, known: int) -> bool:
        """Whether a running text reads a page now that this one will share."""
        return self.resting is None and any(
            other.read < other.prompt_tokens and _shared(text.ids, other.ids) > known
            for other in self.running
        )

    def _start(self, text: Text, match: Match) -> None:
        """Let a text run, with the pages that are known of it."""
        for known in match.pages:
            self.pool.hold(known)
        text.pages, text.read = match.pages, len(match.pages) * PAGE
        if self.resting is not None:
            self._start_states(text, self.resting)
        self.running.append(text)
        if match.count >= LEAST_COPIED and self.runner.cache.copies_exactly:
            self.pool.hold(match.partial)  # taking a page may give this one up
            page = self._take()
            if page is not None:
                text.pages.append(page)
                restored = self.runner.restored
                self.runner.copy_rows(match.partial, page, match.count)
                if restored == self.runner.restored:
                    text.read += match.count
            self.pool.give((match.partial,))
        self.reused += text.read

    @staticmethod
    def _start_states(text: Text, resting: RestingTexts) -> None:
        """Give a text states: those of one that it goes on from, if there is such a text."""
        rest = resting.find(text.ids[:-1]) if text.scores is None else None
        if rest is None:
            text.slot = resting.take_slot()
        else:
            text.slot, text.read, text.pages = rest.slot, len(rest.ids), resting.wake(rest)

    def _preempt(self, text: Text) -> None:
        """Put a text back; what was read of it stays known until its pages are needed."""
        self.preempted += 1
        self._leave(text)
        heapq.heappush(self.waiting, text)

    def _leave(self, text: Text) -> None:
        """Take a running text out of the batch and its pages."""
        self.running.remove(text)
        text.stay += 1
        self._rest(text.ids[: text.read], text.pages, text.slot)
        text.pages, text.read = [], 0

    def _rest(self, ids: list[int], pages: list[int], slot: int) -> None:
        """Know what was read of a text, and give its pages back."""
        if self.resting is None:
            self.prefixes.insert(ids, pages)
        else:
            self.resting.keep(ids, pages, slot)
        self.pool.give(pages)

    def decode_graph(self) -> Graph:
        """The graph of the pass that reads one token of one text."""
        reading = Reading((0,), 0, (0,))
        return self.runner.step(self.runner.shapes.of([reading])).graph

    # --- what the next pass reads ------------------------------------------------------------

    def _compose(self) -> list[tuple[Text, Reading]]:
        """The next reading of each running text, within the tokens that a pass may read."""
        self.running.sort()
        unread = sum(text.unread for text in self.running if text.unread > 1)
        if self.runner.lanes > 1:
            unread = min(unread, CHUNK)
        is_mixed = any(text.unread == 1 for text in self.running)
        left = self._pace.tokens if is_mixed else self.runner.shapes.batch(unread)
        ending = ENDING if is_mixed else len(self.running)
        found, joined = [], 0
        singles = -(-len(self.running) // self._groups)
        for text in list(self.running):
            if text.unread == 1:
                count = min(singles, 1)
                singles -= count
            else:
                count = min(text.unread, left)
            wanted = int(count == text.unread)
            if text.scores is not None and text.unread > 1:
                # No other prompt shares the pass, which gives the logits of all tokens.
                most = ending if is_mixed else self._most_scored
                count = wanted = 0 if joined else min(count, most)
                left = count
            elif text.unread > 1 and wanted > ending:
                count, wanted = count - 1, 0  # it ends in the next pass
            if count and text in self.running and self._make_room(text, text.read + count):
                if text.unread > 1:
                    left, ending = left - count, ending - wanted
                    joined += count
                drafted = self._draft(text)
                ids = [*text.ids[text.read : text.read + count], *drafted]
                wanted += len(drafted)
                found.append((text, Reading(ids, text.read, text.pages, wanted, text.slot)))
        return found

    def _draft(self, text: Text) -> list[int]:
        """Tokens that may follow a text, if it runs by itself and its last token is to be read.

        They take pages that are free, but none from prefixes.
        """
        lone = len(self.running) == 1 and text.unread == 1
        if text.lookup is None or text.scores is not None or not lone:
            return []
        rows = (len(text.pages) + self.pool.free) * PAGE
        drafted = text.lookup.draft(text.ids, min(text.limit - 1, rows) - len(text.ids))
        self._make_room(text, len(text.ids) + len(drafted))
        return drafted

    def _make_room(self, text: Text, rows: int) -> bool:
        """Take pages for the first `rows` of a text; put later texts back where there are none."""
        while len(text.pages) * PAGE < rows:
            page = self._take()
            if page is not None:
                text.pages.append(page)
                continue
            last = max(self.running)
            self._preempt(last)
            if last is text:
                return False
        return True

    def _take(self) -> int | None:
        known = self.prefixes if self.resting is None else self.resting
        if not self.pool.free and not known.evict():
            return None
        return self.pool.take()

    # --- what comes of it --------------------------------------------------------------------

    def _continue(self, text: Text, rows: Logits | Greatest, drafted: Sequence[int]) -> None:
        """Choose the next tokens of a text: one, and another behind each that was drafted."""
        right = 0
        while (token := self._choose(text, rows, right)) is not None:
            if right == len(drafted) or token != drafted[right]:
                break
            text.read += 1
            right += 1
        if text.lookup is not None and drafted:
            text.lookup.judge(len(drafted), right)
            self.drafted += len(drafted)
            self.accepted += right

    def _choose(self, text: Text, rows: Logits | Greatest, row: int) -> int | None:
        """The next token of a text; None where the text ends with it or before it."""
        try:
            if isinstance(rows, Greatest):
                sampled = text.sampler.choose(rows.ids[row], rows.logits[row])
            else:
                # Embedding tables may have more rows than there are tokens.
                known = rows[row, : self._tokenizer.vocab_size]
                sampled = text.sampler.next(known, text.ids)
            ends = sampled.token in self._tokenizer.end_of_generation
            piece = "" if ends else text.decoder.feed(sampled.token)
        except Exception as error:  # noqa: BLE001 - an error of one text must not end the others
            self._end(text, "failed", error)
            return None
        if ends:
            self._end(text, "stop")
            return None
        text.ids.append(sampled.token)
        text.sink.put(sampled, piece)
        if text.decoder.stopped:
            self._end(text, "stop")
            return None
        if len(text.ids) >= text.limit:
            wanted = text.sampler.params.max_tokens
            is_long = wanted is not None and len(text.ids) == text.prompt_tokens + wanted
            self._end(text, "length" if is_long else "context")
            return None
        return sampled.token

    def _end(self, text: Text, finish: str, error: BaseException | None = None) -> None:
        if text in self.running:
            self._leave(text)
        text.sink.end(finish, error, text=text.decoder.finish())

    def _restore(self) -> None:
        """Read all running texts again, after a device was lost with a part of the cache."""
        self.forget()
        for text in self.running:
            first = 0
            while first < text.read:
                last = first + self.runner.shapes.batch(text.read - first)
                ids = text.ids[first:last]
                self.runner.run([Reading(ids, first, text.pages, wanted=0, slot=text.slot)])
                first = last

    def forget(self) -> None:
        """Forget all texts that do not run."""
        self.prefixes.clear()
        if self.resting is not None:
            self.resting.clear()

    def state(self, path: Path) -> StateFile:
        """A file for rows of the cache and states of recurrent layers."""
        model, states = self.runner.model, self.runner.states
        turn = rope_factors(model.weights.tensors, model.hparams.rope, self.runner.context)
        return StateFile(
            path,
            fingerprint(model.file, model.hparams),
            turn,
            self.runner.cache.tensors,
            states.tensors if states else (),
            self.runner.scheduler,
        )

    def save(self, state: StateFile, ids: Sequence[int]) -> int:
        """Write what is known of a text's beginning; return its number of tokens."""
        if self.resting is not None:
            rest = self.resting.find(ids)
            if rest is not None:
                state.save(rest)
            return len(rest.ids) if rest else 0
        match = self.prefixes.find(ids)
        if match.tokens:
            partial = [match.partial] if match.count else []
            state.save(Rest(list(ids[: match.tokens]), [*match.pages, *partial]))
        return match.tokens

    def load(self, state: StateFile) -> int:
        """Know the text of a file, as far as there is room for it; return its number of tokens.

        Where layers are recurrent, that is all of it or nothing.
        """
        saved = state.saved()
        ids = saved.ids
        count = min(len(ids), self.pool.free * PAGE)
        if max(ids) >= self._tokenizer.vocab_size or min(ids) < 0:
            raise FormatError(f"{state.path}: has tokens that the model does not know; delete it")
        slot = -1
        if self.resting is not None:
            if count < len(ids) or not self.resting.room:
                return 0
            slot = self.resting.take_slot()
        pages = [self.pool.take() for _ in range(pages_of(count))]
        loaded: list[int] = []
        try:
            state.load(saved, Rest(ids[:count], pages, slot))
            loaded = ids[:count]
        finally:
            self._rest(loaded, pages, slot)
        return count

    def close(self) -> None:
        """Give back the cache and the plans."""
        self.runner.close()


def _needed(batch: Sequence[tuple[Text, Reading]]) -> int:
    """How many of the greatest logits all texts of a pass need; 0: they need all."""
    wanting = [text for text, reading in batch if reading.wanted]
    needs = [0 if text.scores is not None else text.sampler.needed for text in wanting]
    return max(needs, default=1) if all(needs) else 0


def _shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens in whole pages that two texts begin with alike."""
    whole = min(len(a), len(b)) // PAGE * PAGE
    return next((n for n in range(0, whole, PAGE) if a[n : n + PAGE] != b[n : n + PAGE]), whole)

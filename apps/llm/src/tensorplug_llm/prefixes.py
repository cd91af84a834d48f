"""`Prefixes`: a radix tree of texts whose keys and values are in the cache, page by page."""

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tensorplug_llm.cache import PAGE, PagePool

LEAST = 8
"""Tokens of a page by which it is looked up: texts that share fewer share nothing."""

Key = tuple[int, ...]


@dataclass(eq=False, slots=True)
class _Node:
    """A page and the tokens of its rows; all but leaves are full."""

    ids: tuple[int, ...]
    page: int
    parent: "_Node | None"
    used: int = 0
    children: dict[Key, list["_Node"]] = field(default_factory=dict)
    """By their first `LEAST` tokens, or all where there are fewer."""
    queued: bool = False
    """Whether the queue of leaves has it."""


@dataclass(frozen=True, slots=True)
class Match:
    """What is known of a text: whole `pages`, then the first `count` rows of `partial`."""

    pages: list[int]
    partial: int = 0
    count: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of the text that need not be read."""
        return len(self.pages) * PAGE + self.count


class Prefixes:
    """Holds pages of texts that were read, until `evict` gives them up.

    A page may be held while its sequence still appends rows: the tree knows how many of them hold
    what it says. Whoever continues a page that is partly known copies these rows first.
    """

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._root = _Node((), -1, None)
        self._leaves: list[tuple[int, _Node]] = []
        """A heap of all leaves by when they were used, some of them by an earlier time."""
        self._clock = itertools.count(1)

    def find(self, ids: Sequence[int]) -> Match:
        """The longest known beginning of a text. No page is held by this."""
        node, pages = self._root, list[int]()
        while True:
            rest = tuple(ids[len(pages) * PAGE : (len(pages) + 1) * PAGE])
            found = max(
                _alike(node, rest),
                key=lambda child: _common(child.ids, rest),
                default=None,
            )
            if found is None:
                return Match(pages)
            found.used = next(self._clock)
            count = _common(found.ids, rest)
            if count < PAGE:
                return Match(pages, found.page, count)
            pages.append(found.page)
            node = found

    def insert(self, ids: Sequence[int], pages: list[int]) -> None:
        """Hold the pages of a text that was read; `pages` takes over those that are known already.

        Whole pages of equal texts are kept once.
        """
        node = self._root
        for number, first in enumerate(range(0, len(ids), PAGE)):
            part = tuple(ids[first : first + PAGE])
            known = self._child(node, part)
            if known is None:
                known = _Node(part, pages[number], node)
                node.children.setdefault(part[:LEAST], []).append(known)
                self._pool.know(known.page)
            elif len(known.ids) < len(part):
                self._extend(known, part, pages[number])
            elif len(part) == PAGE and known.page != pages[number]:
                self._pool.hold(known.page)
                self._pool.give(pages[number : number + 1])
                pages[number] = known.page
            known.used = next(self._clock)
            if not known.children:
                self._queue(known)
            node = known

    def evict(self) -> bool:
        """Give up the leaf used least recently of those that no sequence holds, if there is one."""
        held, oldest = list[_Node](), None
        while self._leaves and oldest is None:
            used, leaf = heapq.heappop(self._leaves)
            leaf.queued = False
            if leaf.children:
                continue  # it comes back when it has none
            if used != leaf.used:
                self._queue(leaf)
            elif self._pool.holders[leaf.page] == 1:
                oldest = leaf
            else:
                held.append(leaf)
        for leaf in held:
            self._queue(leaf)
        if oldest is None:
            return False
        parent = oldest.parent
        assert parent is not None
        self._unlink(parent, oldest)
        if not parent.children and parent is not self._root:
            self._queue(parent)
        self._pool.forget(oldest.page)
        return True

    @property
    def evictable(self) -> int:
        """Pages that no sequence holds."""
        return self._pool.spare

    def clear(self) -> None:
        """Forget all texts."""
        for node in self._nodes():
            self._pool.forget(node.page)
        self._root.children.clear()
        self._leaves.clear()

    def _queue(self, leaf: _Node) -> None:
        if not leaf.queued:
            leaf.queued = True
            heapq.heappush(self._leaves, (leaf.used, leaf))

    def _unlink(self, parent: _Node, child: _Node) -> None:
        key = child.ids[:LEAST]
        siblings = parent.children[key]
        siblings.remove(child)
        if not siblings:
            del parent.children[key]

    def _child(self, node: _Node, part: tuple[int, ...]) -> _Node | None:
        """The child that begins with `part`, or whose tokens `part` begins with."""
        for child in _alike(node, part):
            if _common(child.ids, part) == min(len(child.ids), len(part)):
                return child
        return None

    def _extend(self, node: _Node, part: tuple[int, ...], page: int) -> None:
        """Let a leaf know more rows, in its own page or another that has all of them."""
        assert node.parent is not None
        self._unlink(node.parent, node)
        node.ids = part
        node.parent.children.setdefault(part[:LEAST], []).append(node)
        if node.page != page:
            self._pool.know(page)
            self._pool.forget(node.page)
            node.page = page

    def _nodes(self) -> Iterator[_Node]:
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            if node is not self._root:
                yield node
            for children in node.children.values():
                waiting += children


def _alike(node: _Node, part: tuple[int, ...]) -> Iterator[_Node]:
    """The children that begin with `part` or share `LEAST` tokens with it, or end before that."""
    for count in range(1, min(len(part), LEAST) + 1):
        yield from node.children.get(part[:count], ())
    if 0 < len(part) < LEAST:
        for key, children in node.children.items():
            if len(key) > len(part) and key[: len(part)] == part:
                yield from children


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    pairs = zip(a, b, strict=False)
    return next((n for n, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))

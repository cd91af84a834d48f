"""`Prefixes`: a radix tree of texts whose keys and values are in the cache, page by page."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tensorplug_llm.cache import PAGE, PagePool


@dataclass(eq=False, slots=True)
class _Node:
    """A page and the tokens of its rows; all but leaves are full."""

    ids: tuple[int, ...]
    page: int
    parent: "_Node | None"
    used: int = 0
    children: dict[int, list["_Node"]] = field(default_factory=dict)
    """By their first token."""


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
        self._clock = itertools.count(1)

    def find(self, ids: Sequence[int]) -> Match:
        """The longest known beginning of a text. No page is held by this."""
        node, pages = self._root, list[int]()
        while True:
            rest = tuple(ids[len(pages) * PAGE : (len(pages) + 1) * PAGE])
            found = max(
                node.children.get(rest[0], ()) if rest else (),
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
                node.children.setdefault(part[0], []).append(known)
                self._pool.hold(known.page)
            elif len(known.ids) < len(part):
                self._extend(known, part, pages[number])
            elif len(part) == PAGE and known.page != pages[number]:
                self._pool.hold(known.page)
                self._pool.give(pages[number : number + 1])
                pages[number] = known.page
            known.used = next(self._clock)
            node = known

    def evict(self) -> bool:
        """Give up the leaf used least recently of those that no sequence holds, if there is one."""
        leaves = (n for n in self._nodes() if not n.children and self._pool.holders[n.page] == 1)
        oldest = min(leaves, key=lambda n: n.used, default=None)
        if oldest is None:
            return False
        assert oldest.parent is not None
        siblings = oldest.parent.children[oldest.ids[0]]
        siblings.remove(oldest)
        if not siblings:
            del oldest.parent.children[oldest.ids[0]]
        self._pool.give((oldest.page,))
        return True

    @property
    def evictable(self) -> int:
        """Pages that no sequence holds."""
        return sum(self._pool.holders[node.page] == 1 for node in self._nodes())

    def clear(self) -> None:
        """Forget all texts."""
        self._pool.give([node.page for node in self._nodes()])
        self._root.children.clear()

    def _child(self, node: _Node, part: tuple[int, ...]) -> _Node | None:
        """The child that begins with `part`, or whose tokens `part` begins with."""
        for child in node.children.get(part[0], ()):
            if _common(child.ids, part) == min(len(child.ids), len(part)):
                return child
        return None

    def _extend(self, node: _Node, part: tuple[int, ...], page: int) -> None:
        """Let a leaf know more rows, in its own page or another that has all of them."""
        node.ids = part
        if node.page != page:
            self._pool.hold(page)
            self._pool.give((node.page,))
            node.page = page

    def _nodes(self) -> Iterator[_Node]:
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            if node is not self._root:
                yield node
            for children in node.children.values():
                waiting += children


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    pairs = zip(a, b, strict=False)
    return next((n for n, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))

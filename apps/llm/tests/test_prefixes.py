"""The tree of texts whose pages are in the cache."""

import random

import pytest

from tensorplug_llm import prefixes
from tensorplug_llm.cache import PAGE, PagePool, pages_of
from tensorplug_llm.prefixes import Prefixes

BEGIN = 1
"""The token with which all texts begin."""


def read(tree: Prefixes, pool: PagePool, ids: list[int]) -> list[int]:
    """Insert a text; return its pages, which it still holds."""
    pages = [pool.take() for _ in range(pages_of(len(ids)))]
    tree.insert(ids, pages)
    return pages


def spare(tree: Prefixes, pool: PagePool) -> int:
    return sum(pool.holders[node.page] == 1 for node in tree._nodes())


@pytest.mark.parametrize("seed", range(4))
def test_leaves_are_given_up_in_the_order_in_which_they_were_used(seed: int) -> None:
    chance = random.Random(seed)
    pool = PagePool(400)
    tree = Prefixes(pool)
    running: list[list[int]] = []
    for _ in range(200):
        ids = [BEGIN, *chance.choices(range(2), k=chance.randint(0, 3 * PAGE))]
        if pool.free > 4:
            running.append(read(tree, pool, ids))
        if chance.random() < 0.7:
            pool.give(running.pop(chance.randrange(len(running))))
        tree.find(ids[: chance.randint(1, len(ids))])
        if chance.random() < 0.5:
            nodes = [n for n in tree._nodes() if not n.children and pool.holders[n.page] == 1]
            oldest = min(nodes, key=lambda n: n.used, default=None)
            assert tree.evict() == (oldest is not None)
            assert oldest is None or oldest not in tree._nodes()
        assert tree.evictable == spare(tree, pool)
    for pages in running:
        pool.give(pages)

    assert tree.evictable == pool.used
    while tree.evict():
        pass
    assert pool.used == 0


def test_a_large_tree_is_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, compared = PagePool(500), []
    tree = Prefixes(pool)
    for number in range(500):
        pool.give(read(tree, pool, [BEGIN, *[number] * 20]))
    common = prefixes._common
    monkeypatch.setattr(prefixes, "_common", lambda a, b: compared.append(a) or common(a, b))
    monkeypatch.delattr(Prefixes, "_nodes")

    assert tree.find([BEGIN, *[400] * 30]).count == 21
    assert tree.evictable == 500
    assert tree.evict()

    assert len(compared) < 5


@pytest.mark.parametrize(("known", "asked"), [(3, 2), (2, 3), (5, 20), (20, 5), (3, 3)])
def test_beginnings_shorter_than_the_key_are_found(known: int, asked: int) -> None:
    pool = PagePool(4)
    tree = Prefixes(pool)
    ids = list(range(1, 40))
    read(tree, pool, ids[:known])

    assert tree.find(ids[:asked]).count == min(known, asked)
    read(tree, pool, ids[:asked])

    assert len(list(tree._nodes())) == 1

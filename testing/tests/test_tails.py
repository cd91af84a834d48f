"""Each op has a case that is larger than a tile, at tier `ci`."""

import pytest

import tensorplug as tp
from tensorplug_cpu import tiles
from tensorplug_testing.cases import TAILS, node_of
from tensorplug_testing.cases.tails import TILE
from tensorplug_testing.tiers import select

COMPUTING = {name for name, op in tp.OPS.items() if not op.is_view and "." not in name}


def test_every_op_has_a_tail_in_tier_ci():
    taken = {case.id for case in select("ci")}

    assert {case.op for case in TAILS if case.id in taken} == COMPUTING


@pytest.mark.parametrize("case", TAILS, ids=lambda case: case.op)
def test_tail_is_larger_than_a_tile_and_no_multiple_of_it(case):
    node = node_of(case)
    sizes = [node.size, *(source.size for source in node.sources)]

    assert max(sizes) > TILE
    assert max(sizes) % TILE


def test_tiles_of_the_kit_are_those_of_the_numpy_kernels():
    assert TILE == tiles.TILE

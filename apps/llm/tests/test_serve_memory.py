"""Memory that schemas of requests take: how much at once, and until when."""

import asyncio
from collections.abc import Coroutine

import pytest

from tensorplug_llm.serve.memory import Room


async def _turns() -> None:
    """Let every task go on until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


def _run(test: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 10))


def test_request_waits_until_there_is_room_for_its_schema() -> None:
    async def test() -> None:
        room = Room(4)
        await room.take(3)
        waiting = asyncio.ensure_future(room.take(2))
        await _turns()
        assert not waiting.done()

        room.give(3)

        await waiting

    _run(test())


def test_small_schema_does_not_pass_a_large_one_that_waits() -> None:
    async def test() -> None:
        room = Room(4)
        await room.take(2)
        large, small = (asyncio.ensure_future(room.take(size)) for size in (3, 1))
        await _turns()
        assert not small.done()

        room.give(2)

        await asyncio.gather(large, small)

    _run(test())


def test_request_without_a_schema_never_waits() -> None:
    async def test() -> None:
        room = Room(1)
        await room.take(1)
        waiting = asyncio.ensure_future(room.take(1))
        await _turns()

        await room.take(0)

        waiting.cancel()

    _run(test())


@pytest.mark.parametrize("freed", [False, True], ids=["waiting", "as its turn comes"])
def test_turn_of_a_client_that_goes_away_is_the_next_one_s(freed: bool) -> None:
    async def test() -> None:
        room = Room(2)
        await room.take(2)
        gone, next_ = (asyncio.ensure_future(room.take(2)) for _ in range(2))
        await _turns()

        if freed:
            room.give(2)
            gone.cancel()
        else:
            gone.cancel()
            await _turns()
            room.give(2)

        await next_
        assert gone.cancelled()

    _run(test())

"""`Room`: how much memory the schemas of requests may take at once."""

import asyncio
from collections import deque


class Room:
    """Room for the schemas and grammars of requests; what finds none waits its turn."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._waiting = deque[tuple[int, asyncio.Future[None]]]()

    async def take(self, size: int) -> None:
        """Take a part of the room, which must be at most all of it, as soon as there is."""
        if not size or (size <= self._left and not self._waiting):
            self._left -= size
            return
        turn = (size, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        try:
            await turn[1]
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
                self.give(0)  # the next one may fit
            elif not turn[1].cancelled():
                self.give(size)
            raise

    def give(self, size: int) -> None:
        """Give a part back."""
        self._left += size
        while self._waiting and self._waiting[0][0] <= self._left:
            size, taken = self._waiting.popleft()
            if not taken.cancelled():
                self._left -= size
                taken.set_result(None)

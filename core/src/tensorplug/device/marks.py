"""`Mark`: a point in the work of a stream that the host, or another stream, waits for."""

from tensorplug.device.backend import Backend, Event, SupportsEvents
from tensorplug.errors import blaming


class Mark:
    """All that was queued on `stream` so far.

    A stream without events is waited for whole: what was queued on it since then too, unless
    somebody has waited for it already.
    """

    def __init__(self, stream: Backend) -> None:
        self.stream = stream
        self._event: Event | None = None
        self._moment = stream.moment()
        if isinstance(stream, SupportsEvents):
            with blaming(stream.device):
                self._event = stream.record()
            for watch in stream.watches:
                watch.marked(self)

    @property
    def done(self) -> bool:
        """Whether it is known that waiting would return at once."""
        if self._event is None:
            return self.stream.waited_since(self._moment)
        return self._event.done

    def synchronize(self) -> None:
        """Block the host until the mark is reached. Raises what the stream's work raised."""
        if self._event is None:
            if not self.done or self.stream.has_failed:
                self.stream.synchronize()
            return
        with blaming(self.stream.device):
            self._event.synchronize()
        if self.stream.has_failed:
            # The event is reached, and yet the work before it is not done.
            self.stream.synchronize()
        for watch in self.stream.watches:
            watch.reached(self, None)

    def order(self, then: Backend) -> None:
        """Start work queued on `then` from now on after the mark."""
        if then is self.stream:
            return
        event = self._event
        if event is None or not isinstance(then, SupportsEvents) or not then.accepts(event):
            self.synchronize()
            return
        with blaming(then.device):
            then.wait(event)
        for watch in then.watches:
            watch.reached(self, then)

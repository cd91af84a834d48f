"""`Mark`: a point in the work of a stream for which the host or another stream can wait."""

from tensorplug.device.backend import Backend, has_events
from tensorplug.device.event import Event
from tensorplug.errors import blaming


class Mark:
    """A mark behind all work queued on `stream` so far.

    On a stream without events, waiting for the mark waits for all work of the stream, also for
    later work, unless the host has waited for the stream since the mark was made.
    """

    def __init__(self, stream: Backend) -> None:
        self.stream = stream
        self._event: Event | None = None
        self._moment = stream.moment()
        if has_events(stream):
            with blaming(stream.device):
                self._event = stream.record()
            for watch in stream.watches:
                watch.marked(self)

    @property
    def done(self) -> bool:
        """True if it is known that the mark is reached."""
        if self._event is None:
            return self.stream.waited_since(self._moment)
        return self._event.done

    def synchronize(self) -> None:
        """Block the host until the mark is reached. Raises errors of the stream's work."""
        if self._event is None:
            if not self.done or self.stream.has_failed:
                self.stream.synchronize()
            return
        with blaming(self.stream.device):
            self._event.synchronize()
        if self.stream.has_failed:
            # The event is reached although the work before it failed.
            self.stream.synchronize()
        for watch in self.stream.watches:
            watch.reached(self, None)

    def order(self, then: Backend) -> None:
        """Let work queued on `then` from now on start after the mark."""
        if then is self.stream:
            return
        event = self._event
        if event is None or not has_events(then) or not then.accepts(event):
            self.synchronize()
            return
        with blaming(then.device):
            then.wait(event)
        for watch in then.watches:
            watch.reached(self, then)

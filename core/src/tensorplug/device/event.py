"""`Event`: a mark in the work of a stream."""

from abc import ABC, abstractmethod


class Event(ABC):
    """A mark in a stream. An event that was never recorded counts as reached."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block the host until the mark is reached."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """True if the mark is reached."""

"""A forked child does not touch the driver that its parent started, and says what to do."""

from tensorplug_testing.forked import ForkTests


class TestMetal(ForkTests):
    """Streams over the stand-in."""

"""Warnings of a scheduler in its log."""

import logging
from collections.abc import Sequence

from tensorplug.device.buffer import BufferType
from tensorplug.planning.assign import Streams, is_weight
from tensorplug.planning.split import Split
from tensorplug.text import human

logger = logging.getLogger("tensorplug.running")


def warn_of_distant_weights(
    splits: Sequence[Split], streams: Streams, warned: set[BufferType]
) -> None:
    """Warn, once for each kind of memory, of weights in memory that no stream computes in.

    They are copied to another device in every run.
    """
    for split in splits:
        for copy in split.copies:
            if not is_weight(copy.source):
                continue
            kind = streams.distant_type(copy.source)
            if kind is None or kind in warned:
                continue
            warned.add(kind)
            logger.warning(
                "weights %s lie in %s, where no stream of this scheduler computes: %s are copied "
                "to %s in each run; give the scheduler a stream of %s",
                copy.source.label,
                kind.name,
                human(copy.source.nbytes),
                streams.backends[split.stream].name,
                kind.device.name,
            )

"""Graphs and parts as bytes, for files and for other machines. The bytes hold data, never code.

The first line has the version, the kind, and the length and CRC-32 of the JSON text that follows. A
tensor refers only to tensors before it, so there are no cycles. The reader builds nodes by the
rules of the op table, which check sizes, types and parameters. The results must be equal to what
the sender had.

Bytes from outside raise only FormatError. Until everything is checked, reading takes at most 128
times the number of given bytes, and no memory of devices.
"""

from tensorplug.device.wire.graphs import pack_graph, unpack_graph
from tensorplug.device.wire.parts import pack_part, pack_places, unpack_part, unpack_places
from tensorplug.device.wire.sealing import MOST_BYTES

__all__ = [
    "MOST_BYTES",
    "pack_graph",
    "pack_part",
    "pack_places",
    "unpack_graph",
    "unpack_part",
    "unpack_places",
]

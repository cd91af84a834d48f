"""The first line of packed bytes, which says what follows and guards it against damage."""

import json
import re
import zlib

from tensorplug.device.wire.fields import Content
from tensorplug.errors import FormatError, GraphError

VERSION = 1
MOST_BYTES = 1 << 28
"""The largest JSON text that is read, in bytes."""

_HEADER = re.compile(rb"tensorplug wire (\d{1,4}) ([a-z]{1,8}) (\d{1,10}) ([0-9a-f]{8})\n")
_LONGEST_HEADER = 60


def seal(kind: str, content: Content) -> bytes:
    """Return `content` as JSON behind its first line. Raises GraphError if it is too long."""
    text = json.dumps(content, separators=(",", ":")).encode()
    if len(text) > MOST_BYTES:
        raise GraphError(f"pack {kind}: {len(text)} bytes; readers accept at most {MOST_BYTES}")
    return f"tensorplug wire {VERSION} {kind} {len(text)} {zlib.crc32(text):08x}\n".encode() + text


def unseal(kind: str, data: bytes, where: str) -> Content:
    """Return what `seal` was given. Raises FormatError; its text begins with `where`."""
    found = _HEADER.match(data[:_LONGEST_HEADER])
    if found is None:
        raise FormatError(f"{where}: is not a {kind} that tensorplug packed")
    version, kind_here, size, crc = (group.decode() for group in found.groups())
    if int(version) != VERSION:
        raise FormatError(
            f"{where}: has version {version}, this tensorplug reads {VERSION}; "
            "pip install --upgrade tensorplug"
        )
    if kind_here != kind:
        raise FormatError(f"{where}: holds a {kind_here}, not a {kind}")
    have = len(data) - found.end()
    if int(size) != have or have > MOST_BYTES:
        raise FormatError(
            f"{where}: is damaged: {have} bytes follow its first line, which says {size}, of at "
            f"most {MOST_BYTES}; write it again"
        )
    text = data[found.end() :]
    if f"{zlib.crc32(text):08x}" != crc:
        raise FormatError(f"{where}: is damaged: its checksum is wrong; write it again")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise FormatError(f"{where}: is not a JSON object")
    return content

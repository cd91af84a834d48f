"""`whole_file`: atomic replacement of a file. An interrupted write leaves the old file."""

import contextlib
import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":  # Windows has no flock, and refuses to remove an open file
    import fcntl

MOST_NAME = 80
"""Characters of the target's name that the temporary file's name repeats."""


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Yield an empty temporary file that replaces `target` when the block ends without an error.

    If `target` is a link, the file it points to is replaced. The permissions of an existing file
    are kept. The temporary file lies in the folder of `target` and is called
    `.NAME.PID-RANDOM.part`; temporary files of the same NAME that killed processes left are removed
    first. A `target` that is a device or a pipe, such as `/dev/null`, is yielded itself. Raises
    OSError.
    """
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if target.exists() and not target.is_file():
        yield target
        return
    target = Path(os.path.realpath(target))
    remove_left_over(target)
    place, descriptor = _create(target)
    try:
        yield place
        with contextlib.suppress(FileNotFoundError):
            place.chmod(stat.S_IMODE(target.stat().st_mode))
        if sys.platform == "win32":
            os.close(descriptor)
            descriptor = -1
        place.replace(target)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
        place.unlink(missing_ok=True)


def remove_left_over(target: Path) -> None:
    """Remove temporary files for `target` whose processes have ended."""
    ours = re.compile(rf"\.{re.escape(target.name[:MOST_NAME])}\.[0-9]+-[0-9a-f]{{8}}\.part")
    with contextlib.suppress(OSError):
        for place in target.parent.iterdir():
            if ours.fullmatch(place.name):
                _remove(place)


def _create(target: Path) -> tuple[Path, int]:
    """Create a temporary file in the folder of `target`; its open descriptor holds a lock on it."""
    while True:
        word = f"{os.getpid()}-{secrets.token_hex(4)}"
        place = target.with_name(f".{target.name[:MOST_NAME]}.{word}.part")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(place, flags, 0o666)
        if sys.platform == "win32":
            return place, descriptor
        # Another process may have removed the file as a left-over before this lock was taken.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if place.exists():
            return place, descriptor
        os.close(descriptor)


def _remove(place: Path) -> None:
    """Remove a temporary file unless a live process holds its lock and is writing it."""
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            place.unlink()
            return
        descriptor = os.open(place, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            place.unlink()
        finally:
            os.close(descriptor)

"""`Cache`: files kept between processes that save time and never decide whether a program starts.

A file is read exactly as it was written, or not at all: a digest of its name and content stands at
its end. Nothing is read from a folder or file that other users may have written, and nothing is
ever unpickled. Where nothing can be read or written, a warning says so once per process.
"""

import hashlib
import logging
import os
import stat
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

VARIABLE = "TENSORPLUG_CACHE"
"""Names the folder of all caches in place of one among the user's files."""
LIMIT = 2**29
"""Bytes of programs that one cache keeps."""
ABANDONED = 3600.0
"""Seconds after which a half-written file belongs to a process that was killed."""

_OURS = 0o700
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
# A planted link is not followed, and a planted pipe does not block.
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_SEAL = hashlib.sha256().digest_size

logger = logging.getLogger("tensorplug.system.cache")


@dataclass(frozen=True, slots=True)
class Cache:
    """The folder `name` of all caches, with files of one use. Safe beside other processes.

    Files whose names end with `suffix` may be deleted at any time: those used longest ago go when
    all of them have more than `limit` bytes.
    """

    name: str
    suffix: str
    limit: int = LIMIT

    @property
    def folder(self) -> Path:
        """Where the files lie; it may not exist."""
        return root() / self.name

    def usable(self) -> Path | None:
        """The folder, made where it was missing; None, with a warning, where it cannot be used."""
        try:
            folder = self.folder
            folder.parent.mkdir(mode=_OURS, parents=True, exist_ok=True)
            folder.mkdir(mode=_OURS, exist_ok=True)
            return folder if self._trusted(folder) else None
        except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
            _warn_once(_words(error))
            return None

    def read(self, name: str) -> bytes | None:
        """What was written under `name`; None where there is no sound file."""
        try:
            folder = self.folder
            if not self._trusted(folder):
                return None
            with os.fdopen(os.open(folder / name, _READ | _BINARY), "rb") as file:
                facts = os.fstat(file.fileno())
                if not stat.S_ISREG(facts.st_mode) or _foreign(facts) or facts.st_size > self.limit:
                    return None
                sealed = file.read()
                with suppress(OSError):
                    os.utime(folder / name)  # used now: it is forgotten later than others
        except (OSError, RuntimeError):
            return None
        content = sealed[:-_SEAL]
        return content if sealed[len(content) :] == _digest(name, content) else None

    def find(self, name: str) -> Path | None:
        """The path of a sound file, for loaders that do not mind the digest at its end."""
        return None if self.read(name) is None else self.folder / name

    def write(self, name: str, content: bytes) -> bool:
        """Keep a file, which other processes see whole or not at all; False if that cannot be."""
        folder = self.usable()
        if folder is None:
            return False
        try:
            descriptor, part = tempfile.mkstemp(".part", f".{name}.", folder)
            try:
                with os.fdopen(descriptor, "wb") as new:
                    new.write(content + _digest(name, content))
                Path(part).replace(folder / name)
            except BaseException:
                Path(part).unlink(missing_ok=True)
                raise
        except OSError as error:
            _warn_once(_words(error))
            return False
        self._forget_oldest(folder)
        return True

    def mark(self, name: str) -> bool:
        """Leave an empty file; False where there is one. Where nothing can be kept: True."""
        folder = self.usable()
        if folder is None:
            return True
        try:
            os.close(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        except OSError as error:
            _warn_once(_words(error))
        return True

    def forget(self, name: str) -> None:
        """Delete a file or a mark, where there is one and that can be done."""
        with suppress(OSError, RuntimeError):
            (self.folder / name).unlink()

    def _trusted(self, folder: Path) -> bool:
        """Whether only this user can have written there. Raises OSError."""
        reason = _foreign(folder.stat())
        if reason:
            _warn_once(f"{folder} {reason}")
        return not reason

    def _forget_oldest(self, folder: Path) -> None:
        """Delete what was used longest ago, and what killed processes left half written.

        Other processes may do the same at once, and have opened what is deleted here.
        """
        found: list[tuple[float, int, str]] = []
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    facts = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(self.suffix):
                        found.append((facts.st_mtime, facts.st_size, entry.path))
                    elif _is_abandoned(entry.name, facts):
                        Path(entry.path).unlink()
        size = sum(each for _, each, _ in found)
        for _, each, path in sorted(found):
            if size <= self.limit:
                return
            size -= each
            with suppress(OSError):
                Path(path).unlink()


def root() -> Path:
    """The folder of all caches. Raises RuntimeError where the user has no home."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tensorplug"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "tensorplug"
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "tensorplug"


@cache
def _warn_once(reason: str) -> None:
    logger.warning(
        "cache: %s; what is compiled or measured now is not kept for the next start; name a folder "
        "of your own in %s",
        reason,
        VARIABLE,
    )


def _foreign(facts: os.stat_result) -> str:
    """Why other users may have written what `facts` are of; empty where they cannot have."""
    if not hasattr(os, "geteuid"):
        return ""  # Windows: folders of users are their own
    if facts.st_uid not in (0, os.geteuid()):
        return f"belongs to user {facts.st_uid}"
    if facts.st_mode & _WRITABLE_BY_OTHERS:
        return f"may be written by other users (mode {stat.S_IMODE(facts.st_mode):04o})"
    return ""


def _is_abandoned(name: str, facts: os.stat_result) -> bool:
    return name.endswith(".part") and time.time() - facts.st_mtime > ABANDONED


def _digest(name: str, content: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\0" + content).digest()


def _words(error: Exception) -> str:
    """What is wrong with the folder of all caches."""
    if isinstance(error, RuntimeError):
        return "the user has no home folder"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{root()} cannot be written: a file is where a folder must be"
    return f"{root()} cannot be written: {getattr(error, 'strerror', None) or error}"

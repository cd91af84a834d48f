"""`Cache`: a cache of files that outlives the process, for compiled kernels and measurements.

A cache only saves time: a program works without it. Each file ends in a digest of its name and
content, and a file with a wrong digest counts as missing. Folders and files that other users can
write are never read. Cached data is never unpickled. A cache that cannot be read or written causes
one warning per process.
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
"""The environment variable that names the folder of all caches instead of the user's default."""
LIMIT = 2**29
"""Default limit of a cache's total size, in bytes."""
ABANDONED = 3600.0
"""Seconds after which a half-written file is assumed to be left by a killed process."""

_OURS = 0o700
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
# O_NOFOLLOW rejects a symbolic link planted by an attacker; O_NONBLOCK, a planted pipe.
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_SEAL = hashlib.sha256().digest_size

logger = logging.getLogger("tensorplug.system.cache")


@dataclass(frozen=True, slots=True)
class Cache:
    """Files of one purpose in the folder `root() / name`. Several processes may share the folder.

    Files whose names end with `suffix` may be deleted at any time: the least recently used are
    deleted when these files together exceed `limit` bytes.
    """

    name: str
    suffix: str
    limit: int = LIMIT

    @property
    def folder(self) -> Path:
        """The folder of the files; the folder might not exist."""
        return root() / self.name

    def usable(self) -> Path | None:
        """Return the folder, creating it if missing; None, after a warning, if it is unusable."""
        try:
            folder = self.folder
            folder.parent.mkdir(mode=_OURS, parents=True, exist_ok=True)
            folder.mkdir(mode=_OURS, exist_ok=True)
            return folder if self._trusted(folder) else None
        except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
            _warn_once(_words(error))
            return None

    def read(self, name: str) -> bytes | None:
        """Return the bytes written under `name`; None if the file is missing or damaged."""
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
                    os.utime(folder / name)  # the time of use, for `_forget_oldest`
        except (OSError, RuntimeError):
            return None
        content = sealed[:-_SEAL]
        return content if sealed[len(content) :] == _digest(name, content) else None

    def find(self, name: str) -> Path | None:
        """Return the path of an intact file, for loaders that ignore the digest at its end."""
        return None if self.read(name) is None else self.folder / name

    def write(self, name: str, content: bytes) -> bool:
        """Write a file atomically: other processes see all of it or nothing. False on failure."""
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
        """Create an empty file. False if the file exists; True if the cache is unusable."""
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
        """Delete a file or a mark. Errors, such as a missing file, are ignored."""
        with suppress(OSError, RuntimeError):
            (self.folder / name).unlink()

    def _trusted(self, folder: Path) -> bool:
        """True if only this user and root can write to `folder`. Raises OSError."""
        reason = _foreign(folder.stat())
        if reason:
            _warn_once(f"{folder} {reason}")
        return not reason

    def _forget_oldest(self, folder: Path) -> None:
        """Delete the least recently used files over `limit`, and abandoned half-written files.

        Other processes may delete at the same time, or have a deleted file open.
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
    """Return the folder of all caches. Raises RuntimeError if the user has no home folder."""
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
    """Why other users could have written the file with these `facts`; empty if they could not."""
    if not hasattr(os, "geteuid"):
        return ""  # Windows: a user's folders are private by default
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
    """Describe why the folder of all caches cannot be used."""
    if isinstance(error, RuntimeError):
        return "the user has no home folder"
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{root()} cannot be written: a file is where a folder must be"
    return f"{root()} cannot be written: {getattr(error, 'strerror', None) or error}"

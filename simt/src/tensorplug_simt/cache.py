"""What backends keep on disk: compiled programs, and choices."""

import os
import tempfile
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder(name: str) -> Path:
    """The folder `name` in `TENSORPLUG_CACHE`, or among the user's files; it may not be there."""
    chosen = os.environ.get("TENSORPLUG_CACHE")
    return (Path(chosen) if chosen else user_cache_path("tensorplug")) / name


def write_whole(file: Path, content: bytes) -> None:
    """Write a file at once, so that readers never see half of it. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=file.stem)
    with os.fdopen(descriptor, "wb") as new:
        new.write(content)
    Path(name).replace(file)

"""Clang's opinion of texts in Metal Shading Language: are they sound, with address spaces as types?

It is nearer to Apple's compiler, which is clang, than the emulator's is; it is not Apple's.
"""

import os
import shlex
import shutil
import subprocess
from functools import cache

from tensorplug.device import Unsupported
from tensorplug_emulator.compiler import HERE
from tensorplug_emulator.metal import prepared

OPTIONS = ("-x", "c++", "-std=c++17", "-fsyntax-only", "-w", f"-I{HERE}")
NAMES = ("clang++", "clang", *(f"clang-{version}" for version in range(22, 13, -1)))


@cache
def checker() -> tuple[str, ...]:
    """The command of clang, `CLANG` before those of the path; empty where there is none."""
    chosen = shlex.split(os.environ.get("CLANG", ""))
    if chosen:
        return tuple(chosen) if shutil.which(chosen[0]) else ()
    return next(((name,) for name in NAMES if shutil.which(name) and _knows_halves(name)), ())


def _knows_halves(name: str) -> bool:
    """Whether this clang takes `_Float16`, which on x86 those before version 15 do not."""
    command = [name, "-x", "c++", "-fsyntax-only", "-"]
    done = subprocess.run(command, input=b"_Float16 half;", capture_output=True, check=False)
    return done.returncode == 0


@cache
def missing() -> str:
    """Why nothing can be checked here; empty where it can."""
    if checker():
        return ""
    return "address spaces are checked by clang 15 or later; none is installed (CLANG names one)"


def space_problems(text: str) -> list[str]:
    """What clang says against a text, one line for each error. Raises Unsupported without clang."""
    if missing():
        raise Unsupported(missing())
    given = f'#include "languages/metal_spaces.h"\n#line 1 "text.metal"\n{prepared(text)}'
    command = [*checker(), *OPTIONS, "-"]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if "error: " in line]
    return lines or ([done.stderr[:4000]] if done.returncode else [])

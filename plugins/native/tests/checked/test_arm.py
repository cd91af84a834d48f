"""Recorded programs on ARM: compiled by a cross compiler, run under qemu-user, not on hardware."""

import shutil
import subprocess

import pytest

from .building import build

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"

pytestmark = [
    pytest.mark.skipif(
        not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
        reason="apt-get install g++-aarch64-linux-gnu qemu-user",
    ),
]


def test_every_level_gives_what_the_reference_gives(alone, tmp_path):
    target = ("CMAKE_SYSTEM_NAME=Linux", "CMAKE_SYSTEM_PROCESSOR=aarch64")
    replay = build(tmp_path, "replay", "TP_CHECKS=ON", f"CMAKE_CXX_COMPILER={COMPILER}", *target)
    libraries = ("-L", "/usr/aarch64-linux-gnu")
    command = [EMULATOR, *libraries, str(replay), "run", str(alone), "2"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    levels = [line.split(":")[0] for line in done.stdout.splitlines()]
    assert levels == ["baseline", "neon", "neon_dot"]

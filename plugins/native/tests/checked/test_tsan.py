"""Programs of many nodes, on shared and own pools, stopped at times, with ThreadSanitizer."""

import os
import subprocess

from .building import THREAD, build

SECONDS = 60


def test_threads_race_for_nothing(together, tmp_path):
    replay = build(tmp_path, "replay", "TP_CHECKS=ON", *THREAD)
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    command = [str(replay), "threads", str(together), str(SECONDS)]

    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    assert " 0 wrong" in done.stdout

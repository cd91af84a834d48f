"""How commands end: by signals at any time, and where their output is closed or full."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and shells of POSIX")

RUN = "from tensorplug_console import run; run('stub')"


def forget_ignored_signals() -> None:
    """Shells make what they run in the background ignore SIGINT, `nohup` SIGHUP: tests too."""
    for name in ("SIGINT", "SIGHUP", "SIGTERM"):
        signal.signal(signal.Signals[name], signal.SIG_DFL)


@pytest.fixture
def command(tmp_path: Path):
    """Runs a stub of a command; gives exit status, stdout and stderr."""

    def call(text: str, redirect: str = "", before: str = "") -> tuple[int, str, str]:
        lines = [
            "import os, signal, sys",
            "def kill(name): os.kill(os.getpid(), signal.Signals[name])",
        ]
        (tmp_path / "stub.py").write_text("\n".join([*lines, text]))
        done = subprocess.run(
            ["sh", "-c", f'{before}exec "$0" -c "{RUN}" {redirect}', sys.executable],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": ""},
            preexec_fn=forget_ignored_signals,
        )
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.mark.parametrize(
    ("end", "status", "error"),
    [
        ("pass", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('a text')", 1, "a text\n"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_the_status_of_the_command_is_that_of_the_process(command, end, status, error) -> None:
    assert command(f"def main(): print('out'); {end}") == (status, "out\n", error)


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("kill('{}')", id="import"),
        pytest.param("def main():\n  try: kill('{}')\n  finally: print('closed')", id="main"),
        pytest.param(
            "def main():\n  try: kill('{}')\n  except BaseException as e: sys.exit(1)\n"
            "  finally: print('closed')",
            id="caught",
        ),
        pytest.param(
            "import atexit\ndef main(): print('closed'); atexit.register(kill, '{}')", id="end"
        ),
        pytest.param(
            "def main():\n  try: kill('{}')\n  finally:\n    print('closed', flush=True)\n"
            "    kill('SIGTERM')\n    print('never')",
            id="twice",
        ),
    ],
)
def test_a_signal_closes_what_is_open_and_gives_its_status(command, text, name, status) -> None:
    found = command(text.format(name))

    closed = "" if text.startswith("kill") else "closed\n"
    assert found == (143 if "never" in text else status, closed, "")


def test_a_signal_that_is_ignored_stays_ignored(command) -> None:
    found = command("def main(): kill('SIGHUP'); print('on')", before='trap "" HUP; ')

    assert found == (0, "on\n", "")


@pytest.mark.parametrize(
    ("redirect", "status", "error"),
    [
        (">&-", 0, ""),
        ("<&- >&-", 0, ""),
        (">/dev/full", 1, "error: standard output: No space left on device\n"),
        ("2>&-", 0, ""),
    ],
)
def test_an_output_that_cannot_be_written_is_at_most_a_sentence(
    command, redirect, status, error
) -> None:
    text = "def main():\n  print('out')\n  with open(__file__) as own: assert own.read()"

    found = command(text, redirect)

    assert (found[0], found[2]) == (status, error)


def test_a_file_that_is_opened_does_not_become_the_output(command, tmp_path: Path) -> None:
    target = tmp_path / "data"

    status, _, _ = command(
        f"def main():\n  with open({str(target)!r}, 'w') as f: print('out'); f.write('data')", ">&-"
    )

    assert (status, target.read_text()) == (0, "data")


def test_a_command_that_runs_another_ends_with_its_own_status(command) -> None:
    inner = (
        "import types\nfrom tensorplug_console import run\n"
        "sys.modules['inner'] = m = types.ModuleType('inner'); m.main = lambda: sys.exit(5)\n"
        "def main():\n  try: run('inner')\n  except SystemExit as e: print(e.code)\n  sys.exit(2)"
    )

    assert command(inner) == (2, "5\n", "")

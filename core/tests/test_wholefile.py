"""Files that are complete or not there: links, permissions, left-overs, several writers."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tensorplug.system.wholefile import whole_file


def names(folder: Path) -> list[str]:
    return sorted(place.name for place in folder.iterdir())


def fill(target: Path, text: str = "new") -> None:
    with whole_file(target) as place:
        place.write_text(text)


def test_a_file_gets_its_name_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "a"

    with whole_file(target) as place:
        place.write_text("new")
        before = target.exists()

    assert (before, target.read_text(), names(tmp_path)) == (False, "new", ["a"])


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, OSError])
def test_a_failure_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "a"
    target.write_text("old")

    def fail() -> None:
        with whole_file(target) as place:
            place.write_text("half")
            raise error

    with pytest.raises(error):
        fail()

    assert (target.read_text(), names(tmp_path)) == ("old", ["a"])


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755])
def test_permissions_of_the_file_that_was_there_are_kept(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "a"
    target.write_text("old")
    target.chmod(mode)

    fill(target)

    assert (target.read_text(), target.stat().st_mode & 0o777) == ("new", mode)


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_a_new_file_has_the_permissions_that_the_process_gives_files(tmp_path: Path) -> None:
    (tmp_path / "usual").write_text("")

    fill(tmp_path / "a")

    assert (tmp_path / "a").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_points_to_is_written(tmp_path: Path, there: bool) -> None:
    (tmp_path / "folder").mkdir()
    real, link = tmp_path / "folder" / "real", tmp_path / "link"
    if there:
        real.write_text("old")
    link.symlink_to(real)

    fill(link)

    assert link.is_symlink()
    assert real.read_text() == "new"
    assert names(tmp_path) == ["folder", "link"]
    assert names(real.parent) == ["real"]


def test_the_longest_name_has_a_temporary_file_too(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 255)

    fill(target)

    assert target.read_text() == "new"


KILLED = """
import os, signal, sys
from pathlib import Path
from tensorplug.system.wholefile import whole_file
with whole_file(Path(sys.argv[1])) as place:
    place.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills a process")
def test_what_a_killed_process_left_is_removed_by_the_next_writer(tmp_path: Path) -> None:
    target, other = tmp_path / "a", tmp_path / "a.b"
    for path in (target, other):
        subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    left = names(tmp_path)

    fill(target)

    assert len(left) == 2
    assert all(name.startswith(".a.") and name.endswith(".part") for name in left)
    assert [name for name in names(tmp_path) if not name.startswith(".a.b.")] == ["a"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no named pipes in folders")
def test_a_pipe_is_written_and_stays_a_pipe(tmp_path: Path) -> None:
    target = tmp_path / "a"
    os.mkfifo(target)
    thread = threading.Thread(target=fill, args=(target,))
    thread.start()

    text = target.read_text()
    thread.join()

    assert (text, target.is_fifo(), names(tmp_path)) == ("new", True, ["a"])


def test_a_folder_is_no_place_for_a_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        fill(tmp_path)


def test_files_that_are_being_written_are_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "a"

    with whole_file(target) as slow:
        fill(target, "quick")
        slow.write_text("slow")

    assert (target.read_text(), names(tmp_path)) == ("slow", ["a"])


def test_many_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    target = tmp_path / "a"
    texts = [str(n) * 10_000 for n in range(8)]
    threads = [threading.Thread(target=fill, args=(target, text)) for text in texts * 5]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert target.read_text() in texts
    assert names(tmp_path) == ["a"]


def test_files_of_other_names_are_not_taken_for_left_overs(tmp_path: Path) -> None:
    strangers = [
        ".a.part",
        ".a.12.part",
        ".a.12-abcdefgh.part",
        "a.12-01234567.part",
        ".a.x-0.part",
    ]
    for name in strangers:
        (tmp_path / name).write_text("")

    fill(tmp_path / "a")

    assert names(tmp_path) == sorted([*strangers, "a"])

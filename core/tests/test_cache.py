"""Files kept between processes: what was written, or nothing; never an error."""

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorplug.system import cache
from tensorplug.system.cache import ABANDONED, VARIABLE, Cache

CONTENT = b"a program" * 100
SUFFIX = ".bin"
NAME = f"one{SUFFIX}"
OTHER = 54321
"""A user who is neither this one nor root."""


@pytest.fixture(autouse=True)
def warnings(monkeypatch, tmp_path, caplog) -> Callable[[], list[str]]:
    """A folder of the test's own; the warnings so far."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "caches"))
    cache._warn_once.cache_clear()
    return lambda: [r.getMessage() for r in caplog.records]


@pytest.fixture
def programs() -> Cache:
    return Cache("programs", SUFFIX)


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:10])


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def shortened(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def lengthened(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")


def one_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[50] ^= 4
    file.write_bytes(content)


def zeros(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def of_another_name(file: Path) -> None:
    Cache("programs", SUFFIX).write(f"two{SUFFIX}", b"another program")
    (file.parent / f"two{SUFFIX}").replace(file)


class Planted:
    def __reduce__(self) -> tuple:
        return os._exit, (66,)


def pickled(file: Path) -> None:
    file.write_bytes(pickle.dumps(Planted()))


def link(file: Path) -> None:
    target = file.parent.parent / "target"
    file.replace(target)
    file.symlink_to(target)


def link_to_itself(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def written_by_others(file: Path) -> None:
    file.chmod(0o666)


def of_another_user(file: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file to another user")
    os.chown(file, OTHER, OTHER)


FILES = [
    truncated, emptied, shortened, lengthened, one_bit, zeros, of_another_name, pickled,
    link, link_to_itself, folder, pipe, written_by_others, of_another_user,
]  # fmt: skip


@pytest.mark.parametrize("damage", FILES)
def test_file_that_was_not_written_so_is_no_file(programs, damage, warnings):
    programs.write(NAME, CONTENT)
    damage(programs.folder / NAME)

    assert programs.read(NAME) is None
    assert programs.find(NAME) is None
    assert warnings() == []


@pytest.mark.parametrize("damage", [d for d in FILES if d is not folder])
def test_damaged_file_is_replaced(programs, damage, warnings):
    programs.write(NAME, CONTENT)
    damage(programs.folder / NAME)

    assert programs.write(NAME, b"built again")
    assert programs.read(NAME) == b"built again"
    assert warnings() == []


@pytest.mark.parametrize("content", [b"", b"x", CONTENT, bytes(range(256)) * 500])
def test_what_was_written_is_read(programs, content):
    programs.write(NAME, content)

    assert programs.read(NAME) == content


def test_folders_and_files_are_the_users_only(programs):
    programs.write(NAME, CONTENT)

    made = [programs.folder.parent, programs.folder, programs.folder / NAME]
    assert [oct(path.stat().st_mode & 0o777) for path in made] == ["0o700", "0o700", "0o600"]


def open_to_all(base: Path) -> str:
    (base / "programs").mkdir(parents=True)
    (base / "programs").chmod(0o777)
    return f"{base}/programs may be written by other users (mode 0777)"


def open_to_a_group(base: Path) -> str:
    (base / "programs").mkdir(parents=True)
    (base / "programs").chmod(0o770)
    return f"{base}/programs may be written by other users (mode 0770)"


def anothers(base: Path) -> str:
    if os.geteuid():
        pytest.skip("only root can give a folder to another user")
    (base / "programs").mkdir(parents=True)
    os.chown(base / "programs", OTHER, OTHER)
    return f"{base}/programs belongs to user {OTHER}"


def file_for_a_folder(base: Path) -> str:
    base.touch()
    return f"{base} cannot be written: a file is where a folder must be"


def file_for_the_folder_inside(base: Path) -> str:
    base.mkdir()
    (base / "programs").touch()
    return f"{base} cannot be written: a file is where a folder must be"


def link_to_nowhere(base: Path) -> str:
    base.mkdir()
    (base / "programs").symlink_to(base / "nowhere")
    return f"{base} cannot be written: a file is where a folder must be"


FOLDERS = [
    open_to_all, open_to_a_group, anothers, file_for_a_folder, file_for_the_folder_inside,
    link_to_nowhere,
]  # fmt: skip


@pytest.mark.parametrize("damage", FOLDERS)
def test_folder_that_cannot_be_trusted_or_made_is_unused_with_one_warning(
    programs, damage, tmp_path, warnings
):
    reason = damage(tmp_path / "caches")
    before = sorted(tmp_path.rglob("*"))

    written = [programs.write(NAME, CONTENT) for _ in range(2)]
    read = programs.read(NAME)
    marked = [programs.mark("a") for _ in range(2)]
    programs.forget("a")

    assert (written, read, marked) == ([False, False], None, [True, True])
    assert sorted(tmp_path.rglob("*")) == before
    assert warnings() == [
        f"cache: {reason}; what is compiled or measured now is not kept for the next start; name "
        f"a folder of your own in {VARIABLE}"
    ]


def test_folder_that_is_a_link_to_ones_own_is_used(programs, tmp_path, warnings):
    (tmp_path / "large disk").mkdir(mode=0o700)
    (tmp_path / "caches").mkdir()
    (tmp_path / "caches" / "programs").symlink_to(tmp_path / "large disk")

    assert programs.write(NAME, CONTENT)
    assert programs.read(NAME) == CONTENT
    assert warnings() == []


@pytest.mark.parametrize("place", ["/proc/nope", "/proc/self/fd/nope/deep", "/dev/null/x"])
def test_place_where_nothing_can_be_made_is_told_once(programs, monkeypatch, place, warnings):
    monkeypatch.setenv(VARIABLE, place)

    assert [programs.write(NAME, CONTENT) for _ in range(3)] == [False] * 3
    assert programs.read(NAME) is None
    assert [VARIABLE in text for text in warnings()] == [True]


def test_user_without_a_home_is_told_once(programs, monkeypatch, warnings):
    monkeypatch.delenv(VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)

    assert programs.read(NAME) is None
    assert not programs.write(NAME, CONTENT)
    assert programs.mark("a")
    programs.forget("a")
    assert [text.partition(";")[0] for text in warnings()] == ["cache: the user has no home folder"]


def test_warm_cache_on_a_disk_that_is_read_only_is_read(programs, monkeypatch, warnings):
    programs.write(NAME, CONTENT)

    def read_only(*_args, **_kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(cache.tempfile, "mkstemp", read_only)
    monkeypatch.setattr(cache.os, "utime", read_only)

    assert programs.read(NAME) == CONTENT
    assert warnings() == []
    assert not programs.write(f"two{SUFFIX}", CONTENT)
    assert [VARIABLE in text for text in warnings()] == [True]


FULL = f"""
import resource
from tensorplug.system.cache import Cache
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
programs = Cache("programs", "{SUFFIX}")
print([programs.write(f"{{i}}{SUFFIX}", bytes(5000)) for i in range(3)])
print(list(programs.folder.iterdir()))
"""


def test_full_disk_leaves_nothing_behind_and_is_told_once():
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, check=True)

    assert done.stdout == "[False, False, False]\n[]\n"
    assert done.stderr.count("\n") == 1
    assert VARIABLE in done.stderr


def test_files_used_longest_ago_are_deleted_and_others_left():
    programs = Cache("programs", SUFFIX, limit=3 * (1000 + 32))
    old = time.time() - 10_000
    for i, name in enumerate("abc"):
        programs.write(f"{name}{SUFFIX}", bytes(1000))
        os.utime(programs.folder / f"{name}{SUFFIX}", (old + i, old + i))
    programs.write("choices.json", bytes(2000))
    programs.read(f"a{SUFFIX}")

    programs.write(f"d{SUFFIX}", bytes(1000))

    assert sorted(path.name for path in programs.folder.iterdir()) == [
        *(f"a{SUFFIX}", f"c{SUFFIX}", "choices.json", f"d{SUFFIX}")
    ]


def test_half_written_files_of_killed_processes_are_deleted_and_those_of_living_ones_not(programs):
    programs.usable()
    for name, age in {"dead": ABANDONED + 60, "living": 0}.items():
        part = programs.folder / f".{NAME}.{name}.part"
        part.write_bytes(b"half")
        os.utime(part, (time.time() - age,) * 2)

    programs.write(NAME, CONTENT)

    assert sorted(p.name for p in programs.folder.iterdir()) == [f".{NAME}.living.part", NAME]


KILLED = f"""
import os
from tensorplug.system import cache
real = os.fdopen
class Dying:
    def __init__(self, descriptor): self.file = real(descriptor, "wb")
    def __enter__(self): return self
    def __exit__(self, *_): pass
    def write(self, content):
        self.file.write(content[:len(content) // 2]); self.file.flush(); os._exit(9)
cache.os.fdopen = lambda descriptor, mode: Dying(descriptor)
cache.Cache("programs", "{SUFFIX}").write("{NAME}", bytes(1000))
"""


def test_process_that_is_killed_while_it_writes_leaves_no_file_under_the_name(programs):
    done = subprocess.run([sys.executable, "-c", KILLED], check=False)

    assert done.returncode == 9
    assert programs.read(NAME) is None
    assert programs.write(NAME, CONTENT)
    assert programs.read(NAME) == CONTENT


HAMMER = f"""
import sys
from tensorplug.system.cache import Cache
programs, number, wrong = Cache("programs", "{SUFFIX}", limit=20_000), int(sys.argv[1]), 0
for i in range(60):
    name = f"{{(number + i) % 7}}{SUFFIX}"
    programs.write(name, name.encode() * 1000)
    name = f"{{i % 7}}{SUFFIX}"
    wrong += programs.read(name) not in (None, name.encode() * 1000)
print(wrong)
"""


def test_processes_that_write_read_and_delete_at_once_never_read_something_else(programs):
    running = [
        subprocess.Popen(
            [sys.executable, "-c", HAMMER, str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]

    assert [process.communicate(timeout=60) for process in running] == [("0\n", "")] * 3
    assert not list(programs.folder.glob(".*"))


def test_threads_that_mark_the_same_name_leave_one_mark(programs):
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(programs.mark("a"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(answers) == [False] * 7 + [True]
    programs.forget("a")
    assert programs.mark("a")


@pytest.mark.parametrize(
    ("system", "variables", "where"),
    [
        ("linux", {}, "~/.cache/tensorplug"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/tensorplug"),
        ("darwin", {}, "~/Library/Caches/tensorplug"),
        ("win32", {}, "~/AppData/Local/tensorplug"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/tensorplug"),
        ("linux", {VARIABLE: "/named"}, "/named"),
    ],
)
def test_caches_lie_where_the_system_wants_them(monkeypatch, system, variables, where):
    for name in (VARIABLE, "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cache.sys, "platform", system)

    assert cache.root() == Path(where).expanduser()

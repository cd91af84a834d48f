"""Forked children: what survives has new locks; all else raises at once and calls no driver."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

PRELUDE = """
import gc, os, signal, sys, threading, warnings
warnings.simplefilter("ignore")  # Python warns of forks in a process with threads
import numpy as np
import tensorplug as tp
from tensorplug_testing.null import NullBackend, NullDevice

def child(work):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            work()
        except tp.TensorplugError as error:
            print(f"{type(error).__name__}: {error}")
        sys.stdout.flush()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if status:
        print(f"the child ended with {status}")

class Surviving(NullBackend):
    survives_fork = True

x = tp.input("x", (4,), tp.F32)
y = tp.relu(x)
def compute(run):
    print(run.run({x: np.ones(4, np.float32)})[y].tolist())
"""
REASON = (
    "was made before this process was forked, and its driver does not work in the child; start "
    "processes by spawn or forkserver, or open devices only after the fork"
)


def printed(program: str) -> list[str]:
    """The lines that a new process prints, which ends well and writes no errors."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


USES = {
    "run of a schedule": ("compute(run)", "<NullBackend null:0>"),
    "schedule": ("scheduler.schedule(y)", "<NullBackend null:0>"),
    "scheduler": ("tp.Scheduler([stream])", "<NullBackend null:0>"),
    "wait": ("stream.synchronize()", "<NullBackend null:0>"),
    "stream": ("device.open()", "<NullDevice null:0>"),
    "memory": ("device.buffer_type.alloc(8)", "<NullDevice null:0>"),
    "read": ("buffer.read(0, 4)", "<NullBuffer null:0, ANY 8 B>"),
    "write": ("buffer.write(0, b'1')", "<NullBuffer null:0, ANY 8 B>"),
}


@pytest.mark.parametrize(("use", "what"), USES.values(), ids=USES)
def test_use_of_what_a_driver_knew_before_the_fork_raises_with_the_remedy(use, what):
    lines = printed(f"""
device = NullDevice(host=True)
stream = device.open()
buffer = device.buffer_type.alloc(8)
scheduler = tp.Scheduler([stream])
run = scheduler.schedule(y)
child(lambda: {use})
compute(run)
""")

    assert lines == [f"DeviceError: {what}: {REASON}", "[1.0, 1.0, 1.0, 1.0]"]


ENDINGS = {
    "close": "device.close(force=True)",
    "with": "stream.__exit__(None, None, None)",
    "garbage": "[globals().pop(name) for name in ('stream', 'device')] and gc.collect()",
    "drain": "device.drain()",
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_letting_go_in_the_child_calls_no_driver(ending):
    lines = printed(f"""
def called(*_):
    print("the driver was called in", "the parent" if os.getpid() == parent else "the child")

class Watched(NullBackend):
    _synchronize = _close = called

parent = os.getpid()
device = NullDevice(host=True)
device.backend_class = Watched
stream = Watched(device)
child(lambda: {ending})
stream.close()
""")

    assert "the driver was called in the child" not in lines
    assert "the driver was called in the parent" in lines


def test_device_that_survives_computes_in_the_child_though_a_thread_held_every_lock():
    lines = printed("""
device = NullDevice(host=True)
device.backend_class = Surviving
stream = Surviving(device)
scheduler = tp.Scheduler([stream])
run = scheduler.schedule(y)
locks = [stream._turn._lock, scheduler._runs.turn._lock, device._closing]
def hold():
    for lock in locks:
        lock.acquire()
holder = threading.Thread(target=hold)
holder.start(); holder.join()
child(lambda: compute(run))
""")

    assert lines == ["[1.0, 1.0, 1.0, 1.0]"]


def test_registry_answers_in_the_child_though_a_thread_held_its_lock():
    lines = printed("""
registry = tp.Registry(path=[])
taken, done = threading.Event(), threading.Event()
def hold():
    with registry._lock:
        taken.set(); done.wait()
threading.Thread(target=hold).start()
taken.wait()
child(lambda: print(registry.devices()))
done.set()
""")

    assert lines == ["()"]


def test_devices_that_are_made_in_the_child_work_there():
    lines = printed("""
old = NullDevice(host=True).open()
def work():
    with tp.Scheduler([NullDevice(host=True).open()]).schedule(y) as run:
        compute(run)
child(work)
""")

    assert lines == ["[1.0, 1.0, 1.0, 1.0]"]


def test_locks_of_what_is_gone_are_not_kept():
    lines = printed("""
from tensorplug.system.forks import _owners
def living():
    gc.collect()
    return len(_owners)
before = living()
for _ in range(100):
    NullDevice(host=True).open().close()
print(living() - before)
""")

    assert lines == ["0"]

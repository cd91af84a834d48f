"""Children that were forked after a run have threads of their own."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

PROGRAM = """
import gc, os, signal, sys, warnings
warnings.simplefilter("ignore")  # Python warns of forks while threads run
import numpy as np
import tensorplug as tp

x = tp.input("x", (64, 256), tp.F32)
y = tp.soft_max(x)
stream = tp.open(sys.argv[1])
run = tp.Scheduler([stream]).schedule(y)
def compute():
    return float(run.run({x: np.ones((64, 256), np.float32)})[y].sum())
before = compute()
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    print([compute() for _ in range(3)] == [before] * 3)
    stream.threads = 3
    print(compute() == before)
    run.close()
    stream.close(force=True)
    gc.collect()
    sys.exit()
print(os.waitpid(pid, 0)[1], compute() == before)
"""


@pytest.mark.parametrize("spec", ["cpu?threads=2", "cpu@tensorplug-cpu?threads=2"])
def test_child_computes_resizes_closes_and_ends_as_its_parent_does(spec):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, spec],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    assert (done.stdout, done.stderr) == ("True\nTrue\n0 True\n", "")


def test_workers_that_have_run_start_again_in_a_child():
    program = """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore")
from tensorplug_cpu.threads import Workers
workers = Workers(3)
def names():
    found = []
    workers.run([lambda: found.append(threading.current_thread().name)] * 30)
    return len(found)
names()
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    print(names())
    workers.close()
    sys.exit()
print(os.waitpid(pid, 0)[1])
"""

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=100
    )

    assert (done.stdout, done.stderr) == ("30\n0\n", "")

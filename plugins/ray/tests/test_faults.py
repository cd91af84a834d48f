"""Actors that are killed, arguments that never arrive, and drivers that end."""

import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.errors import DeviceLost, RunFailed

from .processes import descendants, exists, wait_until

X = np.ones((3, 32), np.float32)


@pytest.fixture
def devices(cluster):
    return cluster("cpu?threads=1", "cpu?threads=1")


def kill(device):
    """End the actor of a device without warning, as the kernel does for want of memory."""
    os.kill(device.facts["pid"], signal.SIGKILL)


def halves(first, second):
    """Two products, one on each of two streams; returns their weights too."""
    rng = np.random.default_rng(7)
    data = [rng.standard_normal((32, 32), dtype=np.float32) / 6 for _ in range(2)]
    x = tp.input("x", (3, 32), tp.F32)
    one = first.place("one", data[0], usage=tp.WEIGHTS)
    two = second.place("two", data[1], usage=tp.WEIGHTS)
    y = tp.relu(tp.relu(x @ one.T) @ two.T)
    wanted = np.maximum(np.maximum(X @ data[0].T, 0) @ data[1].T, 0)
    return x, y, {one: data[0], two: data[1]}, wanted


@pytest.mark.parametrize("lost", [0, 1])
def test_failure_names_the_device_whose_actor_was_killed(devices, lost):
    with devices[0].open() as a, devices[1].open() as b, tp.open("cpu") as host:
        x, y, _, _ = halves(a, b)
        with tp.Scheduler([a, b, host]) as scheduler, scheduler.schedule(y) as run:
            run.run({x: X})[y]
            kill(devices[lost])

            with pytest.raises(RunFailed) as error:
                run.run({x: X})[y]

    assert error.value.state.devices == (f"ray:{lost}",)
    assert error.value.state.cause == "gone"


def test_run_goes_on_with_the_other_devices(devices):
    with devices[0].open() as a, devices[1].open() as b, tp.open("cpu") as host:
        x, y, weights, wanted = halves(a, b)
        with tp.Scheduler([a, b, host], on_failure="replan") as scheduler:
            scheduler.add_sources({w: lambda data=data: data for w, data in weights.items()})
            run = scheduler.schedule(y)
            run.run({x: X})[y]
            kill(devices[1])

            found = run.run({x: X})[y]

    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_stream_of_a_killed_actor_says_that_it_is_gone(devices):
    with devices[0].open() as stream:
        w = stream.place("w", np.ones(4, np.float32))
        kill(devices[0])

        with pytest.raises(DeviceLost, match="ray:0: its actor is gone"):
            tp.transfer.read(w)
        with pytest.raises(DeviceLost, match="ray:0: its actor is gone"):
            devices[0].memory()


DRIVING = """
import os, signal, sys
import tensorplug as tp
with tp.open("ray:0") as stream:
    print(stream.device.facts["pid"], flush=True)
    sys.stdin.readline()
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["ends", pytest.param("killed", marks=pytest.mark.slow)])
def test_no_process_is_left_when_the_driver_is_gone(how):
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVING, how],
        env={**os.environ, "TENSORPLUG_RAY": "cpu?threads=1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    pids = {int(driver.stdout.readline()), *descendants(driver.pid)}
    driver.communicate("\n")

    assert len(pids) >= 2
    # Ray's agents see after up to a minute that the driver is gone.
    wait_until(lambda: not any(exists(pid) for pid in pids))


HOLDING = """
import os, signal, sys
import numpy as np, ray, tensorplug as tp
with tp.open("ray:0") as one, tp.open("ray:1") as two:
    data = np.ones(4 << 20, np.float32)
    held = [stream.place("w", data) for stream in (one, two)]
    numbers = [(w.place.buffer.link, w.place.buffer.number) for w in held]
    large = [link.start("read", number, 0, data.nbytes) for link, number in numbers]
    ray.wait(large, num_returns=2)
    print(*(stream.device.facts["pid"] for stream in (one, two)), flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def stored(address):
    """The number of objects in the object stores of a cluster."""
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    return get_memory_info_reply(get_state_from_address(address)).store_stats.num_local_objects


@pytest.fixture(scope="module")
def running():
    """The address of a cluster that programs connect to."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made.address
    made.shutdown()


@pytest.mark.slow
def test_killed_driver_leaves_no_actor_and_no_object_in_a_running_cluster(running):
    before = stored(running)
    driver = subprocess.Popen(
        [sys.executable, "-c", HOLDING],
        env={**os.environ, "RAY_ADDRESS": running, "TENSORPLUG_RAY": "cpu?threads=1;cpu?threads=1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    during = stored(running)
    driver.communicate("\n")

    assert driver.returncode == -signal.SIGKILL
    assert len(pids) == 2
    assert during >= before + 2
    wait_until(lambda: not any(exists(pid) for pid in pids) and stored(running) <= before)


ASKING = """
import os, sys
import ray
from tensorplug.errors import OptionError
from tensorplug_ray import cluster
from tensorplug_ray.config import Config

def ask(address):
    try:
        cluster.connect(Config((), address))
        print("taken")
    except OptionError as error:
        print(error)

address = sys.argv[1]
if sys.argv[2] == "another after the own one":
    ask("local")
    ask(address)
    ray.shutdown()
    ray.init(address=address)
    ask(address)
elif sys.argv[2] == "one with several names":
    ask(address)
    ask("localhost:" + address.rpartition(":")[2])
    os.environ["RAY_ADDRESS"] = address
    ask("auto")
    ask("local")
else:
    ray.init(address=address)
    ask("local")
    ask(address)
    ask("192.0.2.99:6379")
"""


@pytest.mark.parametrize(
    ("case", "answers"),
    [
        ("another after the own one", ["taken", "not HERE", "taken"]),
        ("one with several names", ["taken", "taken", "taken", "not local"]),
        ("one of the program", ["taken", "taken", "not 192.0.2.99:6379"]),
    ],
)
def test_process_uses_one_cluster_whatever_it_is_called(running, case, answers):
    done = subprocess.run(
        [sys.executable, "-c", ASKING, running, case],
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
        capture_output=True,
        text=True,
        check=True,
    )

    remedy = "; call ray.shutdown() before it uses another one"
    wanted = [answer.replace("HERE", running) for answer in answers]
    for said, answer in zip(done.stdout.splitlines(), wanted, strict=True):
        if answer == "taken":
            assert said == answer
        else:
            assert said.startswith("ray: this process uses the cluster at ")
            assert said.endswith(answer + remedy)


OPEN = """
import sys
import tensorplug as tp, tensorplug_ray
try:
    tensorplug_ray.connect(sys.argv[1], devices=["cpu?threads=1"])
except tp.errors.TensorplugError as error:
    sys.exit(str(error))
"""
SERVE = ["-m", "tensorplug_ray.serve", "model.gguf", "--address"]


@pytest.fixture(scope="module")
def asks_for_no_token():
    """The address of a cluster whose nodes ask for no token."""
    settings = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    start = ["start", "--head", "--include-dashboard=false", "--num-cpus=1", "--block"]
    options = [f"--port={address.rpartition(':')[2]}", "--node-ip-address=127.0.0.1"]
    head = subprocess.Popen(
        [*ray, *start, *options], env=settings, stdout=subprocess.PIPE, text=True
    )
    try:
        assert any("runtime started" in line for line in head.stdout)
        yield address
    finally:
        head.terminate()
        head.communicate(timeout=60)


@pytest.mark.parametrize("program", [["-c", OPEN], SERVE], ids=["devices", "replicas"])
def test_cluster_that_asks_for_no_token_is_refused_by_a_driver_that_has_one(
    asks_for_no_token, program
):
    if program is SERVE:
        pytest.importorskip("tensorplug_llm.serve.app")
        pytest.importorskip("fastapi")

    done = subprocess.run(
        [sys.executable, *program, asks_for_no_token],
        env={**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    assert done.returncode == 1
    assert "asks for no token (RAY_AUTH_MODE is disabled there)" in done.stderr
    assert "Traceback" not in done.stderr


FILLED = """
import tensorplug as tp, tensorplug_ray
try:
    (device,) = tensorplug_ray.connect(devices=["cpu?threads=1"])
    while True:
        device.memory()
except tp.errors.TensorplugError as error:
    print(error)
"""


def test_actor_that_ray_ends_for_want_of_memory_is_lost():
    settings = {"RAY_memory_usage_threshold": "0.01", "RAY_memory_monitor_refresh_ms": "100"}
    done = subprocess.run(
        [sys.executable, "-c", FILLED],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=True,
    )

    # Nothing else ends it. Ray names the memory, unless it was asked before it knew of the end.
    assert "ray:0: its actor is gone: " in done.stdout


CONNECTING = """
import tensorplug as tp, tensorplug_ray
tp.load_all()
(first,) = tensorplug_ray.connect(devices=["cpu?threads=1"])
with first.open():
    try:
        tensorplug_ray.connect(devices=["cpu?threads=2"])
    except tp.errors.LiveChildren:
        print("open")
second, third = tensorplug_ray.connect(devices=["cpu?threads=1", "cpu?threads=2"])
print(first.closed, second.closed, tp.devices_of("ray") == (second, third))
"""


def test_program_may_connect_after_it_loaded_all_and_connect_again():
    done = subprocess.run(
        [sys.executable, "-c", CONNECTING], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines() == ["open", "True False True"]

"""Cases shared out to processes: what a device does to its process costs the one case."""

import json
import os
import subprocess
import sys

import pytest

from tensorplug_testing.distributions import write_distribution

PLUGIN = """
import os
import signal
import sys

import tensorplug
from tensorplug_cpu.backend import CPUBackend
from tensorplug_cpu.device import CPUDevice

api_version = (0, 1)


class AcmeBackend(CPUBackend):
    def _close(self):
        {closing}


class AcmeDevice(CPUDevice):
    backend_class = AcmeBackend

    def _open(self, options):
        return AcmeBackend(self, 1)

    def _refuses(self, node, source_types):
        if node.op == "sub":
            {fault}
        return super()._refuses(node, source_types)


@tensorplug.hookimpl
def tensorplug_devices():
    return [AcmeDevice("acme:0")]
"""
OPS = ("-o", "add", "-o", "sub", "-o", "mul", "--tier", "smoke", "--json")


@pytest.fixture
def kit(tmp_path):
    """Run the kit in another process on a device with a fault; exit status, JSON, stderr."""

    def call(*arguments: str, fault: str = "pass", closing: str = "pass"):
        write_distribution(
            tmp_path,
            "tensorplug-acme",
            entry_points={"acme": "tensorplug_acme"},
            modules={"tensorplug_acme.py": PLUGIN.format(fault=fault, closing=closing)},
        )
        done = subprocess.run(
            [sys.executable, "-m", "tensorplug", "test", "--device", "acme", *OPS, *arguments],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, json.loads(done.stdout), done.stderr

    return call


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "end"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("os._exit(0)", "status 0"),
    ],
)
def test_case_that_ends_its_process_fails_and_no_other_is_lost(kit, fault, end):
    status, found, _ = kit("-j", "2", fault=fault)

    subtractions = [r for r in found["records"] if r["op"] == "sub"]
    others = [r for r in found["records"] if r["op"] != "sub"]
    assert status == 1
    assert [r["detail"] for r in subtractions] == [
        f"{r['case']} (seed {r['seed']}): its process ended with {end}" for r in subtractions
    ]
    assert {r["op"] for r in others} == {"add", "mul"}
    assert {r["verdict"] for r in others} == {"passed"}


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_device_that_calls_exit_fails_and_the_run_goes_on(kit, jobs):
    status, found, _ = kit("-j", jobs, fault="sys.exit(0)")

    details = [r["detail"] for r in found["records"] if r["op"] == "sub"]
    assert status == 1
    assert found["summary"]["failed"] == len(details)
    assert all("): SystemExit: 0 (tensorplug_acme.py:" in detail for detail in details)


def test_process_that_dies_as_it_closes_its_stream_is_a_failure(kit):
    # Not in the process that shares out, which opens and closes one as well.
    closing = 'os._exit(5) if "spawn_main" in " ".join(sys.orig_argv) else None'

    status, found, _ = kit("-j", "2", closing=closing)

    (failure,) = [r for r in found["records"] if r["verdict"] == "failed"]
    wanted = "a process ended with status 5 after its last case, when it closed its stream"
    assert (status, failure["detail"]) == (1, wanted)

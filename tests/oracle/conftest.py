"""One ggml, one device and one ledger for all oracle tests of a run."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from oracle.client import Oracle
from oracle.ggml import NoLibrary
from oracle.report import Finding, Ledger

from tensorplug_cpu.backend import CPUBackend
from tensorplug_cpu.device import CPUDevice

LEDGER = Ledger()
RECENT = (0, 25)


def pytest_sessionfinish() -> None:
    wanted = os.environ.get("TENSORPLUG_ORACLE_REPORT")
    if wanted and LEDGER.version:
        Path(wanted).write_text(LEDGER.page())


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    try:
        oracle = Oracle()
    except NoLibrary as error:
        pytest.exit(str(error), returncode=1)
    LEDGER.version = oracle.version
    yield oracle
    oracle.close()


@pytest.fixture(scope="session")
def recent(oracle: Oracle) -> Oracle:
    """The ggml, if it searches for blocks as it does now."""
    if oracle.release < RECENT:
        pytest.skip(f"ggml {oracle.version} searches for some blocks otherwise than 0.25 does")
    return oracle


@pytest.fixture(scope="session")
def note() -> Callable[[Finding], Finding]:
    """Write a finding down; skip the test where one of the two does not compute the case."""

    def note(finding: Finding) -> Finding:
        LEDGER.findings.append(finding)
        if finding.verdict in ("refused", "otherwise", "ours"):
            pytest.skip(f"{finding.op}: {finding.verdict}: {finding.detail}")
        return finding

    return note


@pytest.fixture(scope="session")
def device() -> Iterator[CPUDevice]:
    with CPUDevice("cpu:0") as device:
        yield device


@pytest.fixture(scope="session")
def backend(device: CPUDevice) -> Iterator[CPUBackend]:
    with device.open(threads=1) as backend:
        assert isinstance(backend, CPUBackend)
        yield backend

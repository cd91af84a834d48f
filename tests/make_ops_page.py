"""Writes the table of `docs/ops.md`: `python tests/make_ops_page.py`.

A device says from an op, types and sizes what it supports, before anything is compiled or run. So
the stand-ins for CuPy and Apple's Metal answer for GPUs that this machine does not have. Needs an
OpenCL driver.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorplug as tp
from tensorplug.device import Device
from tensorplug_testing.cases import REFUSED
from tensorplug_testing.support import Support, as_markdown, ask
from tensorplug_testing.tiers import all_cases

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "ops.md"
SPECS = {"cpu": "cpu@tensorplug-cpu", "native": "cpu@tensorplug-native", "opencl": "opencl:0"}


def table() -> str:
    """The table in Markdown, a column for each backend and one for the kernels that GPUs share."""
    cases = [*all_cases(), *REFUSED]

    def answers(name: str, device: Device) -> Support:
        return Support(name, ask(device, cases).answers)

    columns = []
    for name, spec in SPECS.items():
        with tp.open(spec) as stream:
            columns.append(answers(name, stream.device))
    for name, portable in (("cuda", False), ("metal", False), ("shared", True)):
        with emulated("metal" if name == "metal" else "cuda", portable=portable) as device:
            columns.append(answers(name, device))
    return as_markdown(columns)


@contextmanager
def emulated(backend: str, *, portable: bool) -> Iterator[Device]:
    """A GPU of the stand-in that the tests of a plugin use."""
    sys.path.insert(0, str(ROOT / "plugins" / backend / "tests" / "standin"))
    os.environ["TENSORPLUG_CUDA_KERNELS"] = "portable" if portable else ""
    if backend == "cuda":
        from tensorplug_cuda.enumeration import devices
    else:
        from tensorplug_metal import system
        from tensorplug_metal.enumeration import devices

        system.version = lambda: (15, 1)
    (device,) = devices()
    with device:
        yield device


def main() -> None:
    """Replace the table of the page."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text[: text.index("| op |")] + table() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

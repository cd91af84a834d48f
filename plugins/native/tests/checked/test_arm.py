"""Programs and a wheel on ARM: cross-compiled, run under qemu-user, not on hardware."""

import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from .building import SOURCE, build

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"

pytestmark = [
    pytest.mark.skipif(
        not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
        reason="apt-get install g++-aarch64-linux-gnu qemu-user",
    ),
]


def test_every_level_gives_what_the_reference_gives(alone, tmp_path):
    target = ("CMAKE_SYSTEM_NAME=Linux", "CMAKE_SYSTEM_PROCESSOR=aarch64")
    replay = build(tmp_path, "replay", "TP_CHECKS=ON", f"CMAKE_CXX_COMPILER={COMPILER}", *target)
    libraries = ("-L", "/usr/aarch64-linux-gnu")
    command = [EMULATOR, *libraries, str(replay), "run", str(alone), "2"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    levels = [line.split(":")[0] for line in done.stdout.splitlines()]
    assert levels == ["baseline", "neon", "neon_dot"]


ROOT = SOURCE.parents[1]
PURE = ("core", "testing", "plugins/cpu")
DEBIAN = "trixie"
PACKAGES = "numpy typer pytest importlib-metadata packaging pluggy tqdm yaml requests hypothesis"
"""Packages of Debian that wheels here need."""
NEEDED = ("gguf", "threadpoolctl", "lazy_importer")
"""Modules without compiled code that Debian does not have, or has in an older version."""
OPS = ("mul_mat", "rms_norm", "silu", "get_rows")
PROGRAM = """
import platform, sys
import tensorplug as tp
from tensorplug_native.library import library
tp.load_all()
print(platform.machine(), tp.open("cpu"), *library().levels)
sys.argv[:1] = "tensorplug test --device cpu --tier smoke".split()
from tensorplug_console import main
main()
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs Debian's Python for ARM, unpacked and not installed, with the wheels of today."""
    debootstrap = shutil.which("debootstrap", path=f"{os.environ['PATH']}:/usr/sbin")
    if debootstrap is None or os.geteuid() != 0:
        pytest.skip("needs root and debootstrap: apt-get install debootstrap")
    root = tmp_path_factory.mktemp("debian")
    packages = ",".join(f"python3-{name}" for name in PACKAGES.split())
    command = [debootstrap, "--foreign", "--arch=arm64", "--variant=minbase"]
    subprocess.run([*command, f"--include={packages}", DEBIAN, str(root)], check=True)
    for package in (root / "var/cache/apt/archives").glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    libraries = [f"/usr/lib/aarch64-linux-gnu/{name}" for name in ("blas", "lapack")]

    def run(*arguments: str, path: Path) -> str:
        environ = (f"LD_LIBRARY_PATH={':'.join(libraries)}", f"PYTHONPATH={path}")
        command = [EMULATOR, "-L", str(root), *(word for e in environ for word in ("-E", e))]
        program = [str(next((root / "usr/bin").glob("python3.?*"))), *arguments]
        done = subprocess.run([*command, *program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
        return done.stdout

    return run


def test_the_wheel_for_arm_computes_what_the_reference_computes(
    python: Callable[..., str], tmp_path: Path
) -> None:
    loader = SourceFileLoader("release", str(ROOT / "release"))
    release = module_from_spec(spec_from_loader("release", loader))
    loader.exec_module(release)
    folder, site = tmp_path / "dist", tmp_path / "site"
    folder.mkdir()
    failed = [release.build(ROOT / member, folder) for member in PURE]
    assert [*failed, release.build_for_arm(folder), release.tagged(folder)] == [""] * 5
    assert len(list(folder.glob("*manylinux*_aarch64.whl"))) == 1
    for file in folder.glob("*.whl"):
        zipfile.ZipFile(file).extractall(site)
    for name in NEEDED:
        found = Path(str(find_spec(name).origin))
        place = found.parent if found.stem == "__init__" else found
        (site / place.name).symlink_to(place)

    printed = python("-c", PROGRAM, *(f"--op={op}" for op in OPS), path=site)

    assert printed.startswith("aarch64 <NativeBackend cpu:0> baseline neon neon_dot\n")
    assert " 0 failed" in printed

"""Kernels under oclgrind, which reports races and accesses out of bounds; it is slow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorplug_opencl.drivers import VENDORS
from tensorplug_opencl.facts import ACTIVATIONS, WIDE

VARIANTS = Path(__file__).with_name("test_variants.py")
LIBRARY = Path("/usr/lib/oclgrind/liboclgrind-rt-icd.so")
FAMILIES = {
    "rows": "norm rms_norm l2_norm group_norm soft_max soft_max_back rms_norm_back sum_rows mean",
    "sums": "sum count_equal cross_entropy_loss cross_entropy_loss_back argmax cumsum repeat_back",
    "sorts": "argsort top_k",
    "products": "mul_mat mul_mat_id out_prod",
    "products of bytes": "mul_mat mul_mat_id",
    "attention": "flash_attn_ext flash_attn_back rope",
    "elements": "add mul silu swiglu geglu scale concat cont repeat get_rows_back pad roll",
    "recurrences": "ssm_conv ssm_scan rwkv_wkv6 rwkv_wkv7 gated_linear_attn gated_delta_net",
    "images": "conv_2d im2col im2col_back pool_2d pool_2d_back upscale conv_transpose_2d",
}
PROGRAM = "from tensorplug.cli import main; main()"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not LIBRARY.exists(), reason="apt-get install oclgrind"),
]


@pytest.mark.parametrize("wide", ["0", "1"], ids=["groups", "items"])
@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_race_for_nothing_and_stay_in_bounds(family, wide, tmp_path):
    ops = [word for op in FAMILIES[family].split() for word in ("-o", op)]
    command = ["-c", PROGRAM, "test", "--device", "opencl:0", "--tier", "smoke", *ops]

    done, found = run(
        command, tmp_path, {WIDE: wide, ACTIVATIONS: "q8" if "bytes" in family else "f32"}
    )

    assert done.returncode == 0, done.stdout
    assert found == ""


def test_every_variant_of_products_races_for_nothing_and_stays_in_bounds(tmp_path):
    command = ["-m", "pytest", "-q", str(VARIANTS), "-k", "experts or serves or teams or bytes"]

    done, found = run(command, tmp_path, {})

    assert done.returncode == 0, done.stdout
    assert found == ""


def run(command, folder, settings):
    """What Python did on oclgrind's device, and what oclgrind found."""
    (folder / "oclgrind.icd").write_text(f"{LIBRARY}\n")
    log = folder / "oclgrind.log"
    environment = {
        **os.environ,
        **settings,
        VENDORS: str(folder),
        "OCLGRIND_DATA_RACES": "1",
        "OCLGRIND_LOG": str(log),
        "TENSORPLUG_CACHE": str(folder),
    }
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )
    return done, log.read_text() if log.exists() else ""

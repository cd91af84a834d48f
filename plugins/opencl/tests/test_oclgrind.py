"""Kernels under oclgrind, which reports races and accesses out of bounds; it is slow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorplug_opencl.drivers import VENDORS
from tensorplug_opencl.facts import ACTIVATIONS, WIDE

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
    (tmp_path / "oclgrind.icd").write_text(f"{LIBRARY}\n")
    log = tmp_path / "oclgrind.log"
    environment = {
        **os.environ,
        VENDORS: str(tmp_path),
        WIDE: wide,
        ACTIVATIONS: "q8" if family == "products of bytes" else "f32",
        "OCLGRIND_DATA_RACES": "1",
        "OCLGRIND_LOG": str(log),
        "TENSORPLUG_CACHE": str(tmp_path),
    }
    ops = [word for op in FAMILIES[family].split() for word in ("-o", op)]
    command = ["test", "--device", "opencl:0", "--tier", "smoke", *ops]

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert not log.exists() or log.read_text() == ""

"""The kernels as people see them: their files, their ops, and the complete sources."""

import json

import pytest
from typer.testing import CliRunner

from tensorplug.cli import app
from tensorplug_opencl import drivers

needs_driver = pytest.mark.skipif(not drivers.devices(), reason="no OpenCL driver has a device")


@pytest.fixture
def listed(tmp_path) -> dict:
    command = ("kernels", "--device", "opencl:0", "--tier", "smoke", "--dump", str(tmp_path))
    result = CliRunner().invoke(app, [*command, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@needs_driver
def test_kernel_is_listed_with_its_ops_and_its_file(listed):
    kernels = {kernel["name"]: kernel for kernel in listed["kernels"]}

    assert kernels["matvec"]["file"] == "tensorplug_opencl/kernels/matvec.cl"
    assert kernels["norm"]["file"] == "tensorplug_simt/kernels/norm.k"
    assert kernels["norm"]["ops"] == ["l2_norm", "norm", "rms_norm"]


@needs_driver
def test_complete_source_of_every_variant_is_written(listed, tmp_path):
    variants = {file for kernel in listed["kernels"] for file in kernel["variants"]}

    assert {path.name for path in tmp_path.iterdir()} == variants
    for path in tmp_path.iterdir():
        name = path.name.partition("-")[0]
        assert f"#define KERNEL_HEAD __kernel void {name}(" in path.read_text()


@needs_driver
def test_one_op_shows_the_signatures_of_its_kernels_and_files_named_for_types(tmp_path):
    command = ["kernels", "--device", "opencl:0", "-o", "get_rows", "--dump", str(tmp_path)]

    result = CliRunner().invoke(app, command)

    assert (
        "\nrows_taken(table, ids; int parts) -> y\n  chosen by tensorplug_simt.families.rows."
        in result.stdout
    )
    assert len(list(tmp_path.glob("rows_taken-q8_0-*.cl"))) == 1
    assert len(list(tmp_path.glob("rows_taken-f16-*.cl"))) == 1


@needs_driver
def test_device_without_texts_says_so():
    result = CliRunner().invoke(app, ["kernels", "--device", "cpu"])

    assert result.exit_code == 1
    assert "cpu:0: does not compile kernels from texts" in result.stderr

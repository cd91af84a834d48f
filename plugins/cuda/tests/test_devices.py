"""Which devices there are, and what they are; emulated."""

import logging

import pytest

import tensorplug as tp
from tensorplug.device import DeviceError, DeviceType, OptionError
from tensorplug_emulator.suites.devices import FeatureTests


def test_each_gpu_is_a_device_with_its_identity(devices, machine):
    machine.reset(gpus=2)

    first, second = devices()

    assert [first.name, second.name] == ["cuda:0", "cuda:1"]
    assert [first.hardware_id, second.hardware_id] == ["0000:41:00.0", "0000:42:00.0"]
    assert first.info.type is DeviceType.GPU
    assert first.info.description == "emulated GPU"
    assert first.gpu.capability == (8, 0)
    assert first.gpu.uuid == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert first.info.memory_total == machine.gpus[0].memory


def test_identity_that_cupy_cut_is_none(devices, machine):
    machine.gpus[0].properties["uuid"] = b"\x01\x02"

    (device,) = devices()

    assert device.gpu.uuid == ""
    assert str(device.gpu) == "sm_80, 0000:41:00.0"


def test_integrated_gpu_shares_the_hosts_memory(devices, machine):
    machine.gpus[0].properties["integrated"] = 1

    (device,) = devices()

    assert device.type is DeviceType.IGPU
    assert not device.info.capabilities.mmap


def test_machine_without_gpus_has_no_devices(devices, machine):
    machine.reset(gpus=0)

    assert devices() == []


def test_one_gpu_can_be_several_devices_with_a_part_of_its_memory(devices, machine, monkeypatch):
    monkeypatch.setenv("TENSORPLUG_CUDA_EMULATED", "2")

    first, second = devices()

    assert (first.ordinal, second.ordinal) == (0, 0)
    assert (first.hardware_id, second.hardware_id) == ("0000:41:00.0",) * 2
    assert first.description == "emulated GPU, part 1 of 2"
    assert first.memory().total == machine.gpus[0].memory // 2
    with second.buffer_type.alloc(1000):
        assert second.memory().free == second.total - 1000
        assert first.memory().free == first.total


@pytest.mark.parametrize("wanted", ["0", "two", "17", "-1"])
def test_number_of_devices_that_means_nothing_is_refused(devices, monkeypatch, wanted):
    monkeypatch.setenv("TENSORPLUG_CUDA_EMULATED", wanted)

    with pytest.raises(OptionError, match=f"TENSORPLUG_CUDA_EMULATED='{wanted}': a number"):
        devices()


def test_gpu_that_takes_no_memory_is_left_out_with_a_warning(devices, machine, caplog):
    machine.reset(gpus=2)
    machine.gpus[0].allocated = machine.gpus[0].memory

    with caplog.at_level(logging.WARNING):
        (device,) = devices()

    assert (device.name, device.ordinal) == ("cuda:0", 1)
    assert "a GPU is left out: GPU 0: cudaErrorMemoryAllocation" in caplog.text


def test_machine_on_which_no_gpu_works_says_why(devices, machine):
    machine.gpus[0].allocated = machine.gpus[0].memory

    with pytest.raises(DeviceError, match="no GPU works: GPU 0: cudaErrorMemoryAllocation"):
        devices()


@pytest.mark.parametrize(("wanted", "bytes_"), [("", True), ("int8", True), ("f32", False)])
def test_activations_are_rounded_unless_the_user_says_no(devices, monkeypatch, wanted, bytes_):
    monkeypatch.setenv("TENSORPLUG_CUDA_ACTIVATIONS", wanted)

    (device,) = devices()

    assert (device.facts.int_dot, device.facts.int8_activations) == (bytes_, bytes_)


def test_gpu_without_products_of_bytes_has_none(devices, machine):
    machine.gpus[0].properties |= {"major": 6, "minor": 0}

    (device,) = devices()

    assert not device.facts.int_dot


def test_activations_that_mean_nothing_are_refused(devices, monkeypatch):
    monkeypatch.setenv("TENSORPLUG_CUDA_ACTIVATIONS", "fp8")

    with pytest.raises(OptionError, match="TENSORPLUG_CUDA_ACTIVATIONS='fp8': choose from int8"):
        devices()


class TestFeatures(FeatureTests):
    """Versions and GPUs."""

    plugin = "tensorplug_cuda.plugin"
    features = {
        "cupy": "emulated",
        "cuda": "13.0",
        "driver": "13.2",
        "cublaslt": "cuBLASLt is looked for by cuda-pathfinder; install it",
        "gpu 0": "sm_80, 0000:41:00.0, GPU-00010203-0405-0607-0809-0a0b0c0d0e0f",
    }


def test_products_of_many_rows_are_worth_bringing_their_weights(device):
    w = tp.input("w", (64, 64), tp.F32)

    few, many = (tp.mul_mat(w, tp.input("x", (n, 64), tp.F32)) for n in (31, 32))

    assert (device.offload(few), device.offload(many)) == (False, True)
    assert not device.offload(tp.relu(many))


def test_work_goes_to_the_stream_of_another_library(device):
    from cupy import cuda

    theirs = cuda.Stream(non_blocking=True)

    with device.open(stream=theirs.ptr) as stream:
        assert stream.stream.ptr == theirs.ptr


def test_default_stream_of_cuda_is_another_librarys_too(device):
    with device.open(stream=0) as theirs, device.open() as ours:
        assert theirs.stream.ptr == 0
        assert ours.stream.ptr != 0


def test_stream_of_another_library_stays_open(device, machine):
    from cupy import cuda

    theirs = cuda.Stream(non_blocking=True)

    device.open(stream=theirs.ptr).close()

    assert theirs.ptr in machine.queues


def test_complete_sources_of_kernels_are_told_with_their_files(device):
    x = tp.input("x", (4, 64), tp.F32)

    (shared,) = device.kernel_texts(tp.scale(x, 2.0))
    (own,) = device.kernel_texts(tp.mul_mat(x, x))

    assert (shared.name, shared.suffix) == ("scale", ".cu")
    assert shared.file == "tensorplug_simt/kernels/elementwise.k"
    assert (own.name, own.file) == ("warp_product", "tensorplug_cuda/kernels/product.cu")
    assert 'extern "C" __global__ void tp_warp_product(' in own.source

"""Files of a node are compared with those of the driver before anything of them is used."""

from dataclasses import replace

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.errors import FormatError
from tensorplug.gguf import FileTensor, TensorFile, map_file
from tensorplug_ray.files import Files

DATA = np.random.default_rng(3).standard_normal(4096).astype(np.float32)


@pytest.fixture
def wanted(tmp_path):
    """What the driver says of its file, which then lies on the node."""
    path = tmp_path / "model.raw"
    path.write_bytes(b"table".ljust(64) + DATA.tobytes())
    file = TensorFile(*map_file(path, "raw"))
    file.tensors = {"w": FileTensor("w", tp.F32, (4096, 1, 1, 1), 1, 64, DATA.nbytes)}
    with file:
        return path, file.range_of("w")


def test_bytes_of_the_same_file_are_read(wanted):
    path, source = wanted

    assert Files().read(path, source, DATA.nbytes).tobytes() == DATA.tobytes()


@pytest.mark.parametrize(
    ("what", "content"),
    [
        ("size", b"table".ljust(64) + DATA.tobytes() + b"x"),
        ("table", b"other".ljust(64) + DATA.tobytes()),
        ("data", b"table".ljust(64) + (2 * DATA).tobytes()),
    ],
)
def test_another_file_is_refused_with_what_differs(wanted, what, content):
    path, source = wanted
    path.write_bytes(content)

    with pytest.raises(FormatError, match=f"is not the driver's file: its {what} differs"):
        Files().read(path, source, DATA.nbytes)


@pytest.mark.parametrize(("offset", "size"), [(-1, 8), (1 << 40, 8), (64, 8)])
def test_range_that_is_not_the_tensor_is_refused(wanted, offset, size):
    path, source = wanted

    with pytest.raises(FormatError, match=r"bytes from .* are not a tensor of 16384 bytes"):
        Files().read(path, replace(source, offset=offset, size=size), DATA.nbytes)

"""`Dialect`: a language of kernels."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

from tensorplug_simt.program import Kernel


@dataclass(frozen=True, slots=True)
class Dialect:
    """A language: its header, and how the head of a kernel function is written."""

    name: str
    header: str
    """Resource with the macros of the shared texts, `package:path`."""
    head: Callable[[Kernel, str], str]
    """From a kernel and the declaration of its parameter block."""
    part: str = "const {kind} p"
    """How a kernel of launches merged into one names the block of its part, of type `kind`."""


def read_resource(where: str) -> str:
    """The text of a resource `package:path`."""
    package, path = where.split(":")
    return files(package).joinpath(path).read_text(encoding="utf-8")


def _opencl_head(kernel: Kernel, block: str) -> str:
    buffers = [
        f"__global {'' if name in kernel.writes else 'const '}uchar* {name}_base"
        for name in kernel.buffers
    ]
    return f"__kernel void {kernel.name}({', '.join(buffers)}, {block})"


OPENCL = Dialect("opencl", "tensorplug_simt:dialects/opencl.h", _opencl_head)


def _cuda_head(kernel: Kernel, block: str) -> str:
    buffers = [
        f"{'' if name in kernel.writes else 'const '}uchar* {name}_base" for name in kernel.buffers
    ]
    arguments = ", ".join([*buffers, f"const __grid_constant__ {block}"])
    return f'extern "C" __global__ void {kernel.name}({arguments} FOLDS)'


CUDA = Dialect("cuda", "tensorplug_simt:dialects/cuda.h", _cuda_head)


def _metal_head(kernel: Kernel, block: str) -> str:
    kind, name = block.split()
    buffers = [
        f"device {'' if name in kernel.writes else 'const '}uchar* {name}_base [[buffer({place})]]"
        for place, name in enumerate(kernel.buffers)
    ]
    parameters = f"constant {kind}& {name} [[buffer({len(buffers)})]]"
    return f"kernel void {kernel.name}({', '.join([*buffers, parameters, 'METAL_PLACES'])})"


METAL = Dialect("metal", "tensorplug_simt:dialects/metal.h", _metal_head, part="constant {kind}& p")

"""CUDA: the source of a launch, how it is compiled, and the grid that it is launched with."""

from tensorplug_simt.dialects.dialect import CUDA
from tensorplug_simt.program import Grid, Launch
from tensorplug_simt.source import source

LONGEST = 65535
"""Groups along y and along z that a launch may have; along x it is 2**31 - 1."""


def is_folded(groups: Grid) -> bool:
    """Whether `groups` is longer along y or z than CUDA's grids may be."""
    return max(groups[1:]) > LONGEST


def grid(groups: Grid) -> tuple[Grid, tuple[int, ...]]:
    """The grid of a launch, and the ints that its kernel takes after the parameter block.

    A folded grid lies along x, and its kernel, of `cuda_source(..., folded=True)`, is told how many
    groups there were along x and y. Other kernels take nothing more.
    """
    x, y, z = groups
    return ((x * y * z, 1, 1), (x, y)) if is_folded(groups) else (groups, ())


def symbol(launch: Launch) -> str:
    """What the function of a launch is called: not `norm`, of which CUDA has one."""
    return f"tp_{launch.kernel.name}"


def cuda_source(launch: Launch, *, parts: int = 0, folded: bool = False) -> str:
    """The complete CUDA C++ of the kernel of `launch`, under its `symbol`.

    It takes a pointer for each of `launch.regions`, then the parameter block by value, then what
    `grid` says. With `parts` the block is that of launches merged into one.
    """
    text = source(launch, CUDA, parts=parts)
    text = text.replace(f"void {launch.kernel.name}(", f"void {symbol(launch)}(", 1)
    return f"#define FOLDED 1\n{text}" if folded else text


def cuda_options(launch: Launch) -> tuple[str, ...]:
    """Options of NVRTC for `cuda_source`, besides the architecture."""
    return ("--std=c++17", *(["--fmad=false"] if launch.kernel.rounds_each_step else []))

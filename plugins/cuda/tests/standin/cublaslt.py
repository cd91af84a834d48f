"""A stand-in for the part of libcublasLt that the cuda backend calls: it refuses what cuBLASLt
refuses and more, and computes with NumPy.

Functions get what they would get through ctypes: numbers as ctypes has them, and `byref`s.
"""

import ctypes
from typing import Any

import numpy as np
from cupy._machine import machine, view

INVALID_VALUE, NOT_SUPPORTED = 7, 15
F32, F16, BF16 = 0, 2, 14
ELEMENT = {F32: 4, F16: 2, BF16: 2}
TOGETHER = {(F16, F16, F32), (BF16, BF16, F32)}
"""Types of A, B and the result that go together, among those that are asked for."""
SIZES = {"MatmulDesc": {3: 4}, "MatrixLayout": {5: 4, 6: 8}}
SIZES["MatmulPreference"] = {1: 8, 5: 4, 6: 4, 7: 4, 8: 4}
"""Bytes of each attribute."""
ALGORITHM = 0x7E57
WORKSPACE_NEEDED = 1 << 20


class CublasLt:
    """One loaded library: what was made in it, and how often it multiplied."""

    def __init__(self) -> None:
        self.made: dict[int, dict[Any, Any]] = {}
        self.products = 0
        self.questions = 0
        """How often it was asked for an algorithm."""
        self.proposals = True
        """Whether it has an algorithm for anything."""
        self.status = 0
        """What products end with; another one than 0 says that they failed."""

    # --- making and changing ---------------------------------------------------------------

    def cublasLtCreate(self, handle: Any) -> int:
        machine.no_capture("a handle is made")
        return self._make(handle, {"kind": "handle", "gpu": machine.current})

    def cublasLtGetVersion(self) -> int:
        return 130101

    def cublasLtDestroy(self, handle: ctypes.c_void_p) -> int:
        return self._destroy("handle", handle)

    def cublasLtMatmulDescCreate(self, made: Any, compute: Any, scale: Any) -> int:
        if (compute.value, scale.value) != (68, F32):
            return NOT_SUPPORTED
        return self._make(made, {"kind": "MatmulDesc", 3: 0})

    def cublasLtMatrixLayoutCreate(
        self, made: Any, dtype: Any, rows: Any, columns: Any, step: Any
    ) -> int:
        if not isinstance(rows, ctypes.c_uint64) or not isinstance(step, ctypes.c_int64):
            raise TypeError("sizes are uint64_t and int64_t")
        if dtype.value not in ELEMENT or not rows.value or not columns.value:
            return INVALID_VALUE
        facts = {"type": dtype.value, "rows": rows.value, "columns": columns.value}
        return self._make(made, {"kind": "MatrixLayout", **facts, "step": step.value, 5: 1, 6: 0})

    def cublasLtMatmulPreferenceCreate(self, made: Any) -> int:
        usual = dict.fromkeys((5, 6, 7, 8), 256)
        return self._make(made, {"kind": "MatmulPreference", 1: 0, **usual})

    def __getattr__(self, name: str) -> Any:
        for kind in SIZES:
            if name == f"cublasLt{kind}SetAttribute":
                return lambda of, what, value, size: self._set(kind, of, what, value, size)
            if name == f"cublasLt{kind}Destroy":
                return lambda of: self._destroy(kind, of)
        raise AttributeError(name)

    def _make(self, place: Any, facts: dict[Any, Any]) -> int:
        address = 0x5000 + 64 * len(self.made)
        self.made[address] = facts
        place._obj.value = address
        return 0

    def _set(self, kind: str, of: Any, what: Any, value: Any, size: Any) -> int:
        if SIZES[kind].get(what.value) != size.value or ctypes.sizeof(value._obj) != size.value:
            return INVALID_VALUE
        self._known(kind, of)[what.value] = value._obj.value
        return 0

    def _destroy(self, kind: str, of: ctypes.c_void_p) -> int:
        self._known(kind, of)["kind"] = "destroyed"
        return 0

    def _known(self, kind: str, of: ctypes.c_void_p) -> dict[Any, Any]:
        found = self.made[of.value or 0]
        assert found["kind"] == kind, f"{found['kind']} in place of {kind}"
        return found

    # --- multiplying -----------------------------------------------------------------------

    def cublasLtMatmulAlgoGetHeuristic(
        self, handle: Any, what: Any, a: Any, b: Any, c: Any, d: Any, wanted: Any,
        count: Any, results: Any, found: Any,
    ) -> int:  # fmt: skip
        self.questions += 1
        self._known("handle", handle)
        layouts = [self._known("MatrixLayout", of) for of in (a, b, c, d)]
        preference = self._known("MatmulPreference", wanted)
        status = self._check(self._known("MatmulDesc", what), layouts)
        found._obj.value = 0
        if status or not self.proposals or preference[1] < WORKSPACE_NEEDED:
            return status
        result = results._obj
        result.algorithm[0] = ALGORITHM
        for i, of in enumerate(layouts):
            result.algorithm[1 + i] = id(of)
        # The alignments that it may count on.
        result.algorithm[5] = min(preference[i] for i in (5, 6, 7, 8))
        result.workspace, result.state = WORKSPACE_NEEDED, 0
        found._obj.value = count.value
        return 0

    def cublasLtMatmul(
        self, handle: Any, what: Any, alpha: Any, a: Any, of_a: Any, b: Any, of_b: Any,
        beta: Any, c: Any, of_c: Any, d: Any, of_d: Any, algorithm: Any, workspace: Any,
        size: Any, stream: Any,
    ) -> int:  # fmt: skip
        layouts = [self._known("MatrixLayout", of) for of in (of_a, of_b, of_c, of_d)]
        queue = machine.queue(stream.value)
        addresses = [place.value for place in (a, b, c, d)]
        proposed = list(algorithm._obj)
        if proposed[0] != ALGORITHM or proposed[1:5] != [id(of) for of in layouts]:
            return INVALID_VALUE
        if any(address % proposed[5] for address in addresses) or workspace.value % 256:
            return INVALID_VALUE
        if self._known("handle", handle)["gpu"] != queue.ordinal or size.value < WORKSPACE_NEEDED:
            return INVALID_VALUE
        machine.on_gpu(workspace.value, size.value, queue.ordinal)
        for address, of in zip(addresses, layouts, strict=True):
            machine.on_gpu(address, _bytes(of), queue.ordinal)
        assert (alpha._obj.value, beta._obj.value) == (1.0, 0.0)
        if self.status:
            return self.status
        self.products += 1
        copied = [dict(of) for of in layouts]
        queue.put(lambda: self._multiply(addresses, copied), "cublaslt")
        return 0

    def _multiply(self, addresses: list[int], layouts: list[dict[Any, Any]]) -> None:
        a, b = (_numbers(*one) for one in zip(addresses[:2], layouts[:2], strict=True))
        _array(addresses[3], layouts[3])[...] = b @ a.transpose(0, 2, 1)

    def _check(self, what: dict[Any, Any], layouts: list[dict[Any, Any]]) -> int:
        a, b, c, d = layouts
        if what[3] != 1 or (a["type"], b["type"], d["type"]) not in TOGETHER:
            return NOT_SUPPORTED
        if c is not d or any(of["step"] < of["rows"] for of in layouts):
            return INVALID_VALUE
        sizes = (a["rows"], a["columns"], b["columns"])
        if sizes != (b["rows"], d["rows"], d["columns"]) or len({of[5] for of in layouts}) > 1:
            return INVALID_VALUE
        return 0


def _bytes(of: dict[Any, Any]) -> int:
    last = (of[5] - 1) * of[6] + (of["columns"] - 1) * of["step"] + of["rows"]
    return int(last * ELEMENT[of["type"]])


def _array(address: int, of: dict[Any, Any]) -> Any:
    """[batch, column, row] of the memory itself; bf16 as its bits."""
    kind = {F32: np.float32, F16: np.float16, BF16: np.uint16}[of["type"]]
    size = ELEMENT[of["type"]]
    flat = view(address, _bytes(of)).view(kind)
    shape = (of[5], of["columns"], of["rows"])
    strides = (of[6] * size, of["step"] * size, size)
    return np.lib.stride_tricks.as_strided(flat, shape, strides)


def _numbers(address: int, of: dict[Any, Any]) -> Any:
    array = _array(address, of)
    if of["type"] == BF16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)

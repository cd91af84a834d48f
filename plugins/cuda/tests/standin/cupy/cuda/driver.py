"""The driver's own interface."""


class CUDADriverError(RuntimeError):
    """What CuPy raises for a status of the driver."""

    def __init__(self, status: int, detail: str = "") -> None:
        super().__init__(f"CUDA_ERROR {status}{f' ({detail})' if detail else ''}")
        self.status = status

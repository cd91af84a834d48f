"""A stand-in for PyObjC's `Foundation`: the one class that the metal backend needs of it."""


class NSURL:
    """Where a file is."""

    def __init__(self, path: str) -> None:
        self._path = path

    @classmethod
    def fileURLWithPath_(cls, path: str) -> "NSURL":
        if not isinstance(path, str):
            raise TypeError(f"Expecting NSString, got {type(path).__name__}")
        return cls(path)

    def path(self) -> str:
        return self._path

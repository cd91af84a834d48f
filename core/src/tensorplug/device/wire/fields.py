"""The fields of a packed text, each checked when it is read."""

from collections.abc import Callable
from typing import Any, TypeVar

from tensorplug.errors import FormatError
from tensorplug.graph.tensor import MAX_RANK, Ne, Value

DEEPEST = 4
"""The deepest nesting of tuples in a parameter."""
LARGEST = 1 << 62
"""The largest size, stride, offset or count of bytes."""

T = TypeVar("T")
Content = dict[str, Any]


class Fields:
    """Reads the fields of a packed text. Each error names `where`, the source of the text."""

    def __init__(self, where: str, content: Content) -> None:
        self.where = where
        self.content = content

    def checked(self, build: Callable[[], T]) -> T:
        """Return the result of `build`; any error in it becomes a FormatError."""
        try:
            return build()
        except FormatError:
            raise
        except Exception as error:  # rules of ops may fail on values that no builder passes
            raise FormatError(f"{self.where}: {error}") from error

    def _wrong(self, problem: str) -> FormatError:
        return FormatError(f"{self.where}: {problem}")

    def _list(self, record: Content, key: str, what: str = "the text") -> list[Any]:
        found = record.get(key)
        if not isinstance(found, list):
            raise self._wrong(f"{what}: {key} is {short(found)}, not a list")
        return found

    def _text(self, record: Content, key: str, what: str) -> str:
        found = record.get(key)
        if not isinstance(found, str):
            raise self._wrong(f"{what}: {key} is {short(found)}, not a text")
        return found

    def _number(self, value: Any, what: str, most: int = LARGEST, least: int = 0) -> int:
        if type(value) is not int or not least <= value <= most:
            raise self._wrong(f"{what} is {short(value)}, not a number from {least} to {most}")
        return value

    def _four(self, record: Content, key: str, what: str) -> Ne:
        values = self._list(record, key, what)
        if len(values) != MAX_RANK:
            raise self._wrong(f"{what}: {key} has {len(values)} numbers, not {MAX_RANK}")
        a, b, c, d = (self._number(n, f"{what}: {key}") for n in values)
        return (a, b, c, d)

    def _value(self, value: Any, what: str, depth: int = 0) -> Value:
        if isinstance(value, list) and depth < DEEPEST:
            return tuple(self._value(entry, what, depth + 1) for entry in value)
        if type(value) is int:
            return self._number(value, f"{what}: a parameter", LARGEST, -LARGEST)
        if value is None or isinstance(value, float | bool | str):
            return value
        raise self._wrong(f"{what}: {short(value)} is not a parameter")


def short(value: object) -> str:
    """A value as an error shows it: at most 80 characters, and of lists and objects the type."""
    text = repr(value) if not isinstance(value, list | dict) else type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."

"""Speeds of `import tensorplug` over NumPy, and of `load_all()`: how often a second."""

import importlib
import json
import time
from collections.abc import Callable


def speed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return 1 / (time.perf_counter() - start)


if __name__ == "__main__":
    importlib.import_module("numpy")
    imported = speed(lambda: importlib.import_module("tensorplug"))
    tensorplug = importlib.import_module("tensorplug")
    print(json.dumps({"import": imported, "load_all": speed(tensorplug.load_all)}))

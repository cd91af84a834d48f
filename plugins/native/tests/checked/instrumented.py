"""Runs pytest with another build of the library: `python instrumented.py LIBRARY ARGUMENTS`."""

import sys

import pytest

from tensorplug_native import library

if __name__ == "__main__":
    library.location = lambda: sys.argv[1]
    sys.exit(pytest.main(sys.argv[2:]))

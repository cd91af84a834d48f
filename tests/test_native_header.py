"""The header that tensorplug-native's C++ shares with Python is the one that its tables give."""

from pathlib import Path

import pytest

headers = pytest.importorskip("tensorplug_native.headers")
HEADER = Path(__file__).parents[1] / "plugins" / "native" / "cpp" / "tables.h"


def test_committed_header_is_what_the_tables_give():
    assert HEADER.read_text() == headers.header(), (
        f"write it again: python -m tensorplug_native.headers plugins/native/cpp/{HEADER.name}"
    )

"""Options of streams, handed on by a device that joins several; emulated."""

import pytest

from tensorplug_emulator import missing
from tensorplug_emulator.suites.devices import OptionTests

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


class TestOptions(OptionTests):
    """The stream of another library, and how many there are."""

    names = ("stream", "streams")

    @pytest.fixture(params=names)
    def option(self, request, stream):
        return request.param, {"stream": stream.stream.ptr, "streams": 3}[request.param]

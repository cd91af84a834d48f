"""The whole conformance kit on the template device."""

from collections.abc import Iterator

import pytest

from tensorplug_template.device import TemplateDevice
from tensorplug_testing.kit import DeviceTests


class TestTemplate(DeviceTests):
    """Every contract of a device. What it refuses is skipped with its reason."""

    known_gaps = {}  # such as "test_case[sqr-*": "why it fails for now"

    @pytest.fixture(scope="class")
    @classmethod
    def device(cls) -> Iterator[TemplateDevice]:
        with TemplateDevice("template:0", 0) as device:
            yield device

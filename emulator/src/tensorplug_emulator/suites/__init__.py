"""Tests that SIMT backends share: a test file of a backend inherits them and adds fixtures."""

import pytest

# pytest rewrites the assertions of these modules, so that a failure shows the compared values.
pytest.register_assert_rewrite(
    "tensorplug_emulator.suites.devices", "tensorplug_emulator.suites.kernels"
)

"""`PortableTests`: a backend of a SIMT device on the shared kernels only."""

import itertools
from typing import ClassVar

import pytest

from tensorplug.device import Rounding
from tensorplug_simt.device import SimtDevice
from tensorplug_simt.table import Kernels
from tensorplug_testing.cases import node_of
from tensorplug_testing.check import check
from tensorplug_testing.tiers import select


class PortableTests:
    """Tests for a device of which the user's setting has left out the backend's own kernels."""

    kernels: ClassVar[Kernels]
    """What the backend computes with by default."""

    @pytest.fixture
    def portable(self, device: SimtDevice) -> SimtDevice:
        """The device under test: the fixture `device`, unless a subclass says otherwise."""
        return device

    def test_no_kernel_of_the_backend_is_left(self, portable: SimtDevice) -> None:
        nodes = [node for case in select("smoke") if not portable.refuses(node := node_of(case))]
        texts = itertools.chain.from_iterable(map(portable.kernel_texts, nodes))

        assert {text.file.partition("/")[0] for text in texts} == {"tensorplug_simt"}
        assert {portable.rounding(node) for node in nodes} == {Rounding.NONE}

    @pytest.mark.long
    def test_shared_kernels_compute_the_ops_that_have_own_kernels(
        self, portable: SimtDevice
    ) -> None:
        cases = [case for case in select("smoke") if case.op in self.kernels.own]
        taken = [case for case in cases if not portable.refuses(node_of(case))]

        with portable.open() as stream:
            outcomes = [check(case, stream) for case in taken]

        assert {case.op for case in taken} == set(self.kernels.own)
        assert [f"{o.case}: {o.detail}" for o in outcomes if o.verdict != "passed"] == []

"""`LanguageTests`: a language model generates the same text as the reference."""

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.device import Array, Backend, BufferUsage, Device, Tensor, place, transfer
from tensorplug_cpu.device import CPUDevice
from tensorplug_testing import language
from tensorplug_testing.cases.compare import normalised_error
from tensorplug_testing.language import KINDS, PROMPT, TOKENS, Model, Pass
from tensorplug_testing.suites.work import Rig, Suite

ON_CPU: Mapping[str, frozenset[str]] = {
    "all on the device": frozenset(),
    "first layer on cpu": frozenset({"embedding", "0"}),
    "last layer on cpu": frozenset({"1", "norm", "head"}),
}
"""The parts of the model in memory of the cpu: layers by number, other weights by name."""
REWRITTEN = 8
"""The number of tokens that are generated after the weights were overwritten."""


class LanguageTests(Suite):
    """Generation of 24 tokens with a cache; each run has other ids, positions and masks."""

    @pytest.fixture
    def fallback(self) -> Iterator[Backend]:
        """A stream of the cpu, for ops that the device refuses."""
        with CPUDevice("cpu:kit") as cpu, cpu.open() as backend:
            yield backend

    @pytest.mark.parametrize("on_cpu", ON_CPU)
    @pytest.mark.parametrize("kind", KINDS)
    def test_language_model_writes_what_the_reference_writes(
        self, work: Rig, device: Device, fallback: Backend, kind: str, on_cpu: str
    ) -> None:
        with Text(work, fallback, kind, ON_CPU[on_cpu]) as text:
            text.check(TOKENS)

    @pytest.mark.parametrize("kind", KINDS)
    def test_language_model_follows_weights_that_are_written_after_a_run(
        self, work: Rig, device: Device, fallback: Backend, kind: str
    ) -> None:
        with Text(work, fallback, kind, ON_CPU["all on the device"]) as text:
            text.check(2)

            text.rewrite(seed=1)

            text.check(REWRITTEN, seed=1)


class Text:
    """A model in memory of the device and the cpu, with schedules for a prompt and for a token."""

    def __init__(self, work: Rig, fallback: Backend, kind: str, on_cpu: frozenset[str]) -> None:
        self._work, self._kind, self._on_cpu = work, kind, on_cpu
        self._device, self._fallback = work.open(), fallback
        self._model = Model(KINDS[kind], self._make)
        self._passes = {tokens: self._model.forward(tokens) for tokens in (len(PROMPT), 1)}
        if not any(_computes(work.device, n) for n in self._passes[1].graph.nodes):
            pytest.skip(f"{work.device.name} supports no op of a language model")

    def __enter__(self) -> "Text":
        scheduler = self._work.keep(tp.Scheduler([self._device, self._fallback]))
        self._schedules = {
            each.logits: self._work.keep(scheduler.schedule(each.graph))
            for each in self._passes.values()
        }
        return self

    def __exit__(self, *_: object) -> None:
        self._work.close()

    def check(self, tokens: int, seed: int = 0) -> None:
        """Generate `tokens` tokens after the prompt and compare their logits, step by step."""
        texts = language.generate(KINDS[self._kind].noise, self._passes, self._run)
        pairs = zip(language.wanted(self._kind, seed)[:tokens], texts, strict=False)
        for turn, ((token, logits), (got, ours)) in enumerate(pairs):
            error = normalised_error(ours.astype(np.float64), logits)
            limit = KINDS[self._kind].limit
            where = f"token {turn + 1} of {tokens}"
            assert error <= limit, f"{where}: logits have NMSE {error:.2e}, more than {limit:g}"
            assert got == token, f"{where} is {got}; the reference generates {token}"

    def rewrite(self, seed: int) -> None:
        """Overwrite the weights with the values of `seed`, and clear the caches."""
        for name, (stored, _) in language.weights(KINDS[self._kind], seed).items():
            transfer.write(self._model.weights[name], stored)
        for cached in self._model.caches.values():
            transfer.fill(cached, 0)

    def _run(self, each: Pass, inputs: dict[Tensor, Array]) -> Array:
        return np.array(self._schedules[each.logits].run(inputs)[each.logits], np.float64)

    def _make(self, name: str, stored: Array, dtype: tp.DType) -> Tensor:
        home = self._fallback if name.partition(".")[0] in self._on_cpu else self._device
        is_cache = name.endswith((".keys", ".values"))
        if is_cache and not _writes_rows(self._work.device, dtype, language.KV_HEADS):
            home = self._fallback  # the device cannot write rows, so caches are on the cpu
        usage = BufferUsage.ANY if is_cache else tp.WEIGHTS
        tensor = place(name, stored, home.buffer_type, usage=usage, dtype=dtype)
        assert tensor.place is not None
        self._work.keep(tensor.place.buffer)
        return tensor


def _computes(device: Device, node: Tensor) -> bool:
    return not node.is_view and not device.refuses(node)


def _writes_rows(device: Device, dtype: tp.DType, heads: int) -> bool:
    size = heads * language.HEAD
    table, rows = (
        tp.input("cache", (language.SLOTS, size), dtype),
        tp.input("new", (1, size), tp.F32),
    )
    return not device.refuses(tp.set_rows(table, rows, tp.input("rows", (1,), tp.I32)))

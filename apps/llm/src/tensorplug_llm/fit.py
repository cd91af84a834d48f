"""`fit`: the memory that a model would take on devices, before anything is allocated."""

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tensorplug import Backend, Device, DeviceType, DType, Graph, Scheduler, Tensor
from tensorplug.device import Buffer, BufferType, BufferUsage, Resource, allocate
from tensorplug.errors import OptionError, OutOfMemory
from tensorplug.gguf import WeightMemory, WeightMode, weight_memory
from tensorplug_llm.arch import Pass
from tensorplug_llm.cache import MOST_ROWS, PAGE, KVCache, States, pages_of
from tensorplug_llm.loader import OUTPUT, TABLE
from tensorplug_llm.lookup import draft_sizes
from tensorplug_llm.model import AUTO, Auto, Blueprint, Split, check_split, context_size
from tensorplug_llm.opening import LoRA, open_model
from tensorplug_llm.placement import SHARE
from tensorplug_llm.runner import lanes_for, tables
from tensorplug_llm.shapes import Shapes
from tensorplug_llm.step import Floats, Masks, Shape, Step

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """Bytes that a device would hold, and what it has; `free` is 0 where it does not say."""

    device: str
    layers: int
    free: int
    weights: int
    mapped: int
    """Weights that stay in the file, which is mapped."""
    cache: int
    compute: int
    """Intermediate results and inputs of the largest pass."""

    @property
    def total(self) -> int:
        """All of these."""
        return self.weights + self.mapped + self.cache + self.compute

    @property
    def fits(self) -> bool:
        """Whether that is at most SHARE of the free memory."""
        return not self.free or self.total <= SHARE * self.free

    def __str__(self) -> str:
        parts = {
            "weights": self.weights,
            "in the file": self.mapped,
            "cache": self.cache,
            "compute": self.compute,
        }
        sizes = ", ".join(f"{name} {size / MIB:.1f}" for name, size in parts.items())
        free = f"{self.free / MIB:.0f} MiB free" if self.free else "free memory unknown"
        total = f"{self.total / MIB:.1f} MiB"
        return f"{self.device}: {self.layers} layers, {total} ({sizes}); {free}"


@dataclass(frozen=True, slots=True)
class Fit:
    """What a model would take with a context."""

    model: str
    context: int
    sequences: int
    largest_context: int
    """The largest context that fits, 0 if none does."""
    layers: tuple[int, ...] | None
    """Layers of each backend; None where every device has a part of each layer."""
    ratio: tuple[float, ...] | None
    """The shares of the devices then, if they are not even."""
    devices: tuple[DeviceNeed, ...]

    @property
    def fits(self) -> bool:
        """Whether every device has room."""
        return all(need.fits for need in self.devices)


def fit(  # noqa: PLR0913 - a program names only what it wants otherwise
    path: str | os.PathLike[str],
    backends: Sequence[Backend],
    *,
    context: int | Auto | None = None,
    sequences: int = 1,
    contexts: int | None = None,
    kv: DType | None = None,
    layers: Sequence[int] | Auto | None = None,
    split: Split | str = Split.LAYER,
    ratio: Sequence[float] | None = None,
    weights: WeightMode | str = WeightMode.AUTO,
    lora: Sequence[LoRA] = (),
    prompt_lookup: int = 0,
) -> Fit:
    """Say what an engine for `sequences` texts of up to `context` tokens each would allocate.

    Its cache has room for `contexts` of these texts, by default for all, and it drafts up to
    `prompt_lookup` tokens. Devices take layers, or
    parts of every layer, as `load_model` would place them; with `layers` "auto" accelerators give a
    processor layers until they have room for all that they would hold, and with `split` "tensor"
    shares are those of the free memory. With `context` "auto" the largest context that fits is
    taken. Sizes are those of buffers; what drivers and libraries allocate is not
    counted. Raises FormatError, OptionError.
    """
    contexts = sequences if contexts is None else contexts
    for name, value in (("sequences", sequences), ("contexts", contexts)):
        if value < 1:
            raise OptionError(f"{name}: {value}; give at least 1")
    is_cut, is_auto = split == Split.TENSOR, layers == AUTO
    if is_cut and is_auto and ratio is None:
        ratio = _free_shares(backends)
    counts = None if layers == AUTO else layers
    check_split(split, counts, ratio)
    with ExitStack() as stack:
        file = stack.enter_context(open_model(path, lora))
        plan = Blueprint(file)
        hp = plan.hparams
        if not plan.architecture.generates:
            raise OptionError(f"{file.path.name}: an encoder has no context to fit")
        wanted = context_size(hp, None if context == AUTO else context)
        _check_rows(sequences, contexts, wanted)
        drafts = draft_sizes(prompt_lookup, hp)
        owned: list[Resource] = []
        stack.callback(_close, owned)
        plan.open(owned, backends, split=split, ratio=ratio)

        def place(counts: Sequence[int] | None) -> _Sizing:
            plan.place(rows=wanted * contexts, texts=sequences, counts=counts)
            memory = weight_memory(file, plan.homes(), mode=weights, looked_up=plan.looked_up())
            if plan.lies_twice:
                (table,) = weight_memory(file, {TABLE: plan.placement.output.device})
                memory.append(replace(table, tensors=(table.tensors[0].named(OUTPUT),)))
            return _Sizing(plan, memory, sequences, contexts, kv, drafts)

        sizing = place(counts)
        while is_auto and not is_cut:
            fewer = _fewer(sizing.needs(wanted), plan.counts(), backends)
            if fewer is None:
                break
            sizing = place(fewer)
        largest = _largest(sizing, min(hp.context, MOST_ROWS // contexts))
        if context == AUTO:
            if not largest:
                raise OptionError(
                    f"context: none fits: {'; '.join(map(str, sizing.needs(PAGE)))}; choose other "
                    "devices, fewer layers on them, or weights of fewer bits"
                )
            wanted = largest
        return Fit(
            file.path.name,
            wanted,
            sequences,
            largest,
            None if is_cut else plan.counts(),
            None if ratio is None else tuple(ratio),
            sizing.needs(wanted),
        )


def _free_shares(backends: Sequence[Backend]) -> list[float] | None:
    """The free memory of each device; None where one does not say."""
    free = [float(backend.device.memory().free) for backend in backends]
    return free if all(free) else None


def _check_rows(sequences: int, contexts: int, context: int) -> None:
    for name, count, each in (("sequences", sequences, PAGE), ("contexts", contexts, context)):
        if count * each > MOST_ROWS:
            raise OptionError(
                f"{name}: {count} of {each} rows each are {count * each} rows of a cache, which "
                f"has at most {MOST_ROWS}; give fewer, or a shorter context"
            )


def _close(owned: Sequence[Resource]) -> None:
    for resource in reversed(owned):
        resource.close(force=True)


def _fewer(
    needs: Sequence[DeviceNeed], counts: Sequence[int], backends: Sequence[Backend]
) -> list[int] | None:
    """The layers of each backend with one layer less on an accelerator without room, if any."""
    full = {need.device for need in needs if not need.fits}
    hosts = [i for i, b in enumerate(backends) if b.device.type is DeviceType.CPU]
    for i, backend in enumerate(backends):
        if backend.device.name in full and counts[i] and hosts and i not in hosts:
            return [n - (j == i) + (j == hosts[0]) for j, n in enumerate(counts)]
    return None


def _largest(sizing: "_Sizing", most: int) -> int:
    """The largest context, a multiple of PAGE or `most`, with which every device has room."""

    def fits(context: int) -> bool:
        try:
            return all(need.fits for need in sizing.needs(context))
        except OutOfMemory:
            return False

    if fits(most):
        return most
    low, high = 0, pages_of(most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * PAGE) else (low, middle)
    return low * PAGE


def _stand_in(memory: BufferType, size: int) -> Buffer:
    """A buffer without memory."""
    return memory.unallocated(size)


def _weights_stand_in(memory: BufferType, size: int, _tensors: Sequence[Tensor]) -> Buffer:
    """The same for weights, which decide where nodes run."""
    return memory.unallocated(size, BufferUsage.WEIGHTS)


class _Unfilled(Masks):
    """Masks without memory, for passes that are only measured."""

    def take(self, index: int, shape: tuple[int, ...]) -> Floats:
        return np.broadcast_to(np.float32(0), shape)


class _Sizing:
    """Computes sizes for contexts."""

    def __init__(
        self,
        plan: Blueprint,
        memory: Sequence[WeightMemory],
        sequences: int,
        contexts: int,
        kv: DType | None,
        drafts: Sequence[int],
    ) -> None:
        self._plan = plan
        self._memory = memory
        self._sequences = sequences
        self._contexts = contexts
        self._kv = kv
        self._drafts = drafts

    def needs(self, context: int) -> tuple[DeviceNeed, ...]:
        """What each device would hold."""
        pages = pages_of(context * self._contexts)
        kinds = [kind for b in self._plan.streams for kind in b.buffer_type.parts]
        held: dict[Device, Counter[str]] = {kind.device: Counter() for kind in kinds}
        with ExitStack() as stack:
            weights: dict[str, Tensor] = {}
            for group in self._memory:
                memory = group.memory
                placed, buffer = allocate(
                    group.tensors,
                    memory,
                    alloc=partial(_weights_stand_in, memory),
                )
                stack.callback(buffer.close)
                weights |= {tensor.name: tensor for tensor in placed}
                if group.mapped:
                    held[memory.device]["mapped"] += group.size
                    continue
                for kind, size in buffer.held.items():
                    held[kind.device]["weights"] += size
            cache, states = self._tables(pages)
            for table in (cache, states):
                if table is not None:
                    stack.callback(table.close)
                    for kind, size in table.sizes.items():
                        held[kind.device]["cache"] += size
            compute = self._compute(weights, cache, states, pages, context)
        devices = {kind.name: kind.device for kind in kinds}
        for name, size in compute.items():
            held[devices[name]]["compute"] += size
        return tuple(
            DeviceNeed(
                device=device.name,
                layers=sum(_has(b, device) for b in self._plan.placement.layers),
                free=device.memory().free,
                weights=sizes["weights"],
                mapped=sizes["mapped"],
                cache=sizes["cache"],
                compute=sizes["compute"],
            )
            for device, sizes in held.items()
        )

    def _tables(self, pages: int) -> tuple[KVCache, States | None]:
        """The cache and what recurrent layers keep, without memory."""
        layers = self._plan.placement.layers
        return tables(self._plan.hparams, layers, pages, self._kv, self._sequences, _stand_in)

    def _compute(
        self,
        weights: dict[str, Tensor],
        cache: KVCache,
        states: States | None,
        pages: int,
        context: int,
    ) -> dict[str, int]:
        """Bytes of compute memory by buffer type: those of the largest passes."""
        shapes = list(Shapes(self._sequences, pages * PAGE, self._drafts).all())
        found = dict[str, int]()
        parallel = lanes_for(self._plan.hparams, self._plan.placement.layers) > 1
        for shape in {max(shapes, key=extent), max(shapes, key=logits_extent)}:
            graph = self._graph(shape, weights, cache, states, context)
            with Scheduler(self._plan.streams, parallel=parallel) as scheduler:
                for name, size in scheduler.sizes(graph, transient=graph.inputs).items():
                    found[name] = max(found.get(name, 0), size)
        return found

    def _graph(
        self,
        shape: Shape,
        weights: dict[str, Tensor],
        cache: KVCache,
        states: States | None,
        context: int,
    ) -> Graph:
        hp = self._plan.hparams
        step = Step(shape, _Unfilled(), hp, padding_row=cache.padding_row)
        building = Pass(hp, weights, cache, step.inputs, shape.reach, context, states)
        logits = self._plan.architecture.forward(building)
        return Graph(logits, effects=building.writes)


def _has(backend: Backend, device: Device) -> bool:
    """Whether the stream computes on the device, perhaps among others."""
    return any(kind.device is device for kind in backend.buffer_type.parts)


def extent(shape: Shape) -> tuple[int, int, int]:
    """Orders shapes by the memory that their passes take."""
    return shape.tokens, shape.reach, shape.chosen or shape.tokens


def logits_extent(shape: Shape) -> tuple[int, int, int]:
    """Orders shapes by the memory that their logits take: drafts want those of all tokens."""
    return shape.chosen or shape.tokens, shape.tokens, shape.reach

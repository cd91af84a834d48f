"""`HParams`: the sizes and constants of a language model, read from GGUF metadata and checked."""

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tensorplug.errors import FormatError
from tensorplug.gguf import ModelFile

SCALING_TYPES = ("none", "linear", "yarn", "longrope")
"""Ways to stretch rotary positions that are understood."""

POOLINGS = ("none", "mean", "cls", "last", "rank")
"""Ways to make an embedding of the states of tokens, in the order of their numbers in files."""

MOST_EMBEDDING = 1 << 20
"""Elements of the longest row that is taken seriously."""

MOST_KERNEL = 1 << 10
"""Tokens of the longest convolution that is taken seriously."""

Kind = TypeVar("Kind", int, float, str)


@dataclass(frozen=True, slots=True)
class Rope:
    """Parameters of `tensorplug.rope`, by the same names."""

    dims: int
    mode: str
    base: float
    scale: float = 1.0
    original_context: int = 0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts: each token takes the `used` best of `count`, of `feed_forward` rows."""

    count: int
    used: int
    feed_forward: int
    shared_feed_forward: int = 0
    """Rows of the expert that every token takes, 0 where there is none."""
    normalized: bool = False
    """Whether the weights of the experts of a token are divided by their sum."""
    scale: float = 1.0
    """Factor of the weights."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Layers that keep a state of fixed size for each text, where others keep keys and values.

    Each has a convolution over time and, unless `inner` is 0, a state that every token changes.
    """

    layers: frozenset[int]
    channels: int
    """Those of the convolution."""
    past: int
    """Tokens before a token that the convolution reads."""
    inner: int = 0
    """Elements of a token that change the state, in `heads`."""
    heads: int = 0
    groups: int = 0
    """Heads of a group share how their states are written and read."""
    size: int = 0
    """Numbers of the state for each of the `inner` elements."""

    @property
    def state(self) -> int:
        """Elements of the state of a text."""
        return self.inner * self.size

    @property
    def kept(self) -> int:
        """Elements that a layer keeps for a text."""
        return self.past * self.channels + self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class HParams:
    """Sizes are elements; `window` is the reach of local layers, 0 where all are global."""

    architecture: str
    context: int
    """Tokens the model was trained for."""
    vocabulary: int
    embedding: int
    layers: int
    feed_forward: int
    heads: int
    kv_heads: int
    key_length: int
    value_length: int
    norm_eps: float
    rope: Rope
    local_rope: Rope
    """That of layers with a sliding window."""
    attention_scale: float
    attention_softcap: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    """Factor of the result of each block before it joins the stream."""
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    window: int = 0
    local_layers: frozenset[int] = frozenset()
    unturned_layers: frozenset[int] = frozenset()
    """Layers whose queries and keys know no positions."""
    norm: str = "rms_norm"
    """The norm of the stream: `rms_norm`, or `norm` (which subtracts the mean)."""
    experts: Experts | None = None
    recurrence: Recurrence | None = None
    causal: bool = True
    """Whether a token sees none of those after it."""
    pooling: str = ""
    """How the states of the tokens of a text become its embedding; "" where the file is silent."""
    activation: str = ""
    """One of `tensorplug.glu`, where files of the architecture say which."""
    dense: int = 0
    """Rows of the first of two matrices that follow the pooling, 0 where there are none."""
    labels: int = 0
    """Scores that a reranker gives, 0 for other models."""
    token_types: int = 0
    """Rows of the table of kinds of tokens, 0 where there is none."""

    @property
    def key_row(self) -> int:
        """Elements that one token adds to the keys of a layer."""
        return self.kv_heads * self.key_length

    @property
    def value_row(self) -> int:
        """Elements that one token adds to the values of a layer."""
        return self.kv_heads * self.value_length

    @property
    def attention_layers(self) -> list[int]:
        """Layers that keep keys and values."""
        others = self.recurrence.layers if self.recurrence else ()
        return [i for i in range(self.layers) if i not in others]


class HParamsReader:
    """Reads metadata under `architecture.` and raises FormatErrors that name key and value."""

    def __init__(self, file: ModelFile, architecture: str) -> None:
        self.file = file
        self.architecture = architecture

    def key(self, name: str) -> str:
        """The full key: `llama.block_count`."""
        return f"{self.architecture}.{name}"

    def size(self, name: str, default: int | None = None, *, most: int = 1 << 31) -> int:
        """A positive integer, at most `most`."""
        value = self._value(name, int, default)
        if not 0 < value <= most:
            raise self.error(name, value, f"it must be between 1 and {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite, positive number."""
        value = self._value(name, float, default)
        if not (math.isfinite(value) and value > 0):
            raise self.error(name, value, "it must be positive and finite")
        return value

    def size_or_0(self, name: str) -> int:
        """A positive integer, or 0 where the file says 0 or nothing."""
        return self.size(name) if self._is_set(name) else 0

    def number_or_0(self, name: str) -> float:
        """A positive number, or 0 where the file says 0 or nothing."""
        return self.number(name) if self._is_set(name) else 0.0

    def text(self, name: str, default: str, known: tuple[str, ...]) -> str:
        """One of the words in `known`."""
        value = self._value(name, str, default)
        if value not in known:
            raise self.error(name, value, f"known are {', '.join(known)}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self.file.metadata.get(self.key(name), default)
        if not isinstance(value, bool):
            raise self.error(name, value, "it must be true or false")
        return value

    def kernel(self, name: str) -> int:
        """The number of tokens that a convolution over time reads: at least 2."""
        value = self.size(name, most=MOST_KERNEL)
        if value < 2:
            raise self.error(name, value, "it must be at least 2")
        return value

    def used_experts(self) -> int:
        """How many experts each token takes. Raises FormatError for files without experts."""
        return self.size("expert_used_count", most=self.size("expert_count"))

    def has(self, name: str) -> bool:
        """Whether the file has the key."""
        return self.key(name) in self.file.metadata

    def error(self, name: str, value: object, problem: str) -> FormatError:
        """Return the error for a value that cannot be right."""
        return FormatError(
            f"{self.file.path}: metadata {self.key(name)!r} is {value!r}, and {problem}; the "
            "model is damaged, or of a kind that this version cannot run"
        )

    def _is_set(self, name: str) -> bool:
        value = self.file.metadata.get(self.key(name), 0)
        return not (isinstance(value, int | float) and value == 0)

    def _value(self, name: str, kind: type[Kind], default: Kind | None) -> Kind:
        if default is not None and not self.has(name):
            return default
        return self.file.require(self.key(name), kind)


def read_hparams(
    file: ModelFile,
    architecture: str,
    *,
    rope_mode: str,
    norm: str = "rms_norm",
    has_experts: bool = False,
    kv_heads: int | None = None,
) -> HParams:
    """What all architectures have in common. Raises FormatError for missing or absurd values.

    An architecture that `has_experts` reads them by `read_experts`; others refuse them. `kv_heads`
    is given where files have a number for each layer.
    """
    read = HParamsReader(file, architecture)
    experts = read.size_or_0("expert_count")
    if experts and not has_experts:
        raise read.error("expert_count", experts, "this architecture has no experts")
    embedding = read.size("embedding_length", most=MOST_EMBEDDING)
    heads = read.size("attention.head_count", most=embedding)
    if kv_heads is None:
        kv_heads = read.size("attention.head_count_kv", heads, most=heads)
    if heads % kv_heads:
        raise read.error("attention.head_count_kv", kv_heads, f"it must divide the {heads} heads")
    key_length = read.size("attention.key_length", embedding // heads, most=MOST_EMBEDDING)
    rope = _read_rope(read, rope_mode, key_length)
    return HParams(
        architecture=architecture,
        context=read.size("context_length"),
        vocabulary=vocabulary(file),
        embedding=embedding,
        layers=layer_count(read),
        feed_forward=read.size(
            "feed_forward_length",
            read.size_or_0("expert_feed_forward_length") if has_experts else None,
            most=MOST_EMBEDDING,
        ),
        heads=heads,
        kv_heads=kv_heads,
        key_length=key_length,
        value_length=read.size("attention.value_length", embedding // heads, most=MOST_EMBEDDING),
        norm=norm,
        norm_eps=read.number(f"attention.layer_norm_{'rms_' if norm == 'rms_norm' else ''}epsilon"),
        rope=rope,
        local_rope=rope,
        attention_scale=1.0 / math.sqrt(key_length),
        causal=read.flag("attention.causal", default=True),
        pooling=_pooling(read),
    )


def read_recurrence(read: HParamsReader, layers: frozenset[int]) -> Recurrence:
    """The states of `layers`, by the keys `ssm`. Raises FormatError."""
    inner = read.size("ssm.inner_size", most=MOST_EMBEDDING)
    heads = read.size("ssm.time_step_rank", most=inner)
    groups = read.size("ssm.group_count", most=heads)
    size = read.size("ssm.state_size", most=MOST_EMBEDDING)
    for name, value, whole in (
        ("ssm.time_step_rank", heads, inner),
        ("ssm.group_count", groups, heads),
    ):
        if whole % value:
            raise read.error(name, value, f"it must divide {whole}")
    return Recurrence(
        layers=layers,
        channels=inner + 2 * groups * size,
        past=read.kernel("ssm.conv_kernel") - 1,
        inner=inner,
        heads=heads,
        groups=groups,
        size=size,
    )


def layer_count(read: HParamsReader) -> int:
    """The number of layers: at most as many as there are tensors, or a lie would cost a loop."""
    return read.size("block_count", most=max(len(read.file.tensors), 1))


def read_experts(
    read: HParamsReader, feed_forward: int, *, normalized: bool, shared_feed_forward: int = 0
) -> Experts | None:
    """The experts of a file, of `feed_forward` rows each, or None where it has none."""
    count = read.size_or_0("expert_count")
    if not count:
        return None
    return Experts(
        count=count,
        used=read.used_experts(),
        feed_forward=feed_forward,
        shared_feed_forward=shared_feed_forward,
        normalized=normalized,
        scale=read.number_or_0("expert_weights_scale") or 1.0,
    )


def local_layers(read: HParamsReader, layers: int, every: int) -> frozenset[int]:
    """Layers that look at a window only: all but each `every`-th, or as the file says."""
    name = "attention.sliding_window_pattern"
    pattern = read.file.metadata.get(read.key(name))
    if isinstance(pattern, np.ndarray):
        if pattern.size < layers:
            raise read.error(name, pattern.tolist(), f"it must say so for all {layers} layers")
        return frozenset(np.flatnonzero(pattern[:layers]).tolist())
    every = read.size(name, every)
    return frozenset(i for i in range(layers) if i % every < every - 1)


def _read_rope(read: HParamsReader, mode: str, key_length: int) -> Rope:
    dims = read.size("rope.dimension_count", key_length, most=key_length)
    if dims % 2:
        raise read.error("rope.dimension_count", dims, "it must be even")
    scaling = read.text("rope.scaling.type", "linear", SCALING_TYPES)
    stretch = 1.0
    if scaling != "none":
        old = read.number("rope.scale_linear", 1.0)
        stretch = read.number("rope.scaling.factor", old)
    return Rope(
        dims=dims,
        mode=mode,
        base=read.number("rope.freq_base", 10000.0),
        scale=1.0 / stretch,
        original_context=read.size(
            "rope.scaling.original_context_length", read.size("context_length")
        ),
        ext_factor=1.0 if scaling == "yarn" else 0.0,
        attn_factor=read.number("rope.scaling.attn_factor", 1.0),
        beta_fast=read.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=read.number("rope.scaling.yarn_beta_slow", 1.0),
    )


def read_labels(read: HParamsReader) -> int:
    """Scores of a reranker: as many as the file names, or one."""
    names = read.file.metadata.get(read.key("classifier.output_labels"), ())
    return len(names) if isinstance(names, list | tuple) and names else 1


def _pooling(read: HParamsReader) -> str:
    if not read.has("pooling_type"):
        return ""
    kind = read.file.require(read.key("pooling_type"), int)
    if not 0 <= kind < len(POOLINGS):
        raise read.error("pooling_type", kind, f"known are 0 to {len(POOLINGS) - 1}")
    return POOLINGS[kind]


def vocabulary(file: ModelFile) -> int:
    """Rows of the embedding table."""
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise FormatError(
            f"{file.path}: tensor 'token_embd.weight' is missing; the file holds no language "
            "model, or only a part of one"
        )
    return table.ne[1]

"""Mamba-2 (Dao and Gu 2024, arXiv:2405.21060): layers of selective state spaces, no attention."""

import itertools
from dataclasses import dataclass

import tensorplug as tp
from tensorplug import Tensor
from tensorplug.gguf import ModelFile
from tensorplug_llm.arch.architecture import Architecture, Part, Pass
from tensorplug_llm.arch.blocks import embed, join, linear, logits, norm
from tensorplug_llm.arch.recurrent import LARGE, by_part, convolved, keep_state, slots_of
from tensorplug_llm.arch.tables import Expected, linear_tensors, norm_tensors
from tensorplug_llm.hparams import (
    MOST_EMBEDDING,
    HParams,
    HParamsReader,
    Recurrence,
    Rope,
    layer_count,
    vocabulary,
)

NAME = "mamba2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2HParams(HParams):
    """And the sizes of its state spaces: `inner` elements of a token, cut into `state_heads`."""

    inner: int
    state_heads: int
    state_size: int
    """Numbers that stand for the past of one element."""
    groups: int
    """Heads of a group share what is written to their states and read from them."""


def read(file: ModelFile) -> Mamba2HParams:
    """Hyper-parameters of a Mamba-2 model."""
    read = HParamsReader(file, NAME)
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
    layers = layer_count(read)
    rope = Rope(dims=0, mode="neox", base=1.0)
    return Mamba2HParams(
        architecture=NAME,
        context=read.size("context_length"),
        vocabulary=vocabulary(file),
        embedding=read.size("embedding_length", most=MOST_EMBEDDING),
        layers=layers,
        feed_forward=0,
        heads=0,
        kv_heads=0,
        key_length=0,
        value_length=0,
        norm_eps=read.number("attention.layer_norm_rms_epsilon"),
        rope=rope,
        local_rope=rope,
        attention_scale=0.0,
        recurrence=Recurrence(
            layers=frozenset(range(layers)),
            channels=inner + 2 * groups * size,
            past=read.kernel("ssm.conv_kernel") - 1,
            state=inner * size,
        ),
        inner=inner,
        state_heads=heads,
        state_size=size,
        groups=groups,
    )


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer."""
    assert isinstance(hp, Mamba2HParams)
    assert hp.recurrence is not None
    channels = hp.recurrence.channels
    return (
        *norm_tensors(hp, "attn_norm"),
        *linear_tensors("ssm_in", hp.embedding, hp.inner + channels + hp.state_heads),
        Expected("ssm_conv1d.weight", (hp.recurrence.past + 1, channels), exact=True),
        Expected("ssm_conv1d.bias", (channels,)),
        Expected("ssm_dt.bias", (hp.state_heads,)),
        Expected("ssm_a", (1, hp.state_heads)),
        Expected("ssm_d", (1, hp.state_heads)),
        Expected("ssm_norm.weight", (hp.inner // hp.groups, hp.groups)),
        *linear_tensors("ssm_out", hp.inner, hp.embedding),
    )


def forward(p: Pass) -> Tensor:
    """Logits; each block is normed on its way in."""
    x = embed(p)
    for i in range(p.hparams.layers):
        x = join(p, _mixed(p, i, norm(p, x, f"blk.{i}.attn_norm")), x, name=f"blk.{i}.out")
    return logits(p, x)


def _mixed(p: Pass, layer: int, x: Tensor) -> Tensor:
    """Tokens with what the states know of those before them, behind a gate."""
    hp, block = p.hparams, f"blk.{layer}"
    assert isinstance(hp, Mamba2HParams)
    y = linear(p, x, f"{block}.ssm_in")
    gate, rest = y[:, : hp.inner], y[:, hp.inner :]
    scanned = by_part(p, rest, lambda part, rows: _scanned(p, layer, part, rows))
    gated = tp.reshape(tp.swiglu(gate, scanned), (p.tokens, hp.groups, hp.inner // hp.groups))
    normed = tp.reshape(norm(p, gated, f"{block}.ssm_norm"), (p.tokens, hp.inner))
    return linear(p, normed, f"{block}.ssm_out")


def _scanned(p: Pass, layer: int, part: Part, x: Tensor) -> Tensor:
    """The selective scan of the tokens of a part: f32 [inner, tokens]."""
    hp, block, slots = p.hparams, f"blk.{layer}", slots_of(part)
    assert isinstance(hp, Mamba2HParams)
    assert p.states is not None
    inner, heads, groups, size = hp.inner, hp.state_heads, hp.groups, hp.state_size
    texts, channels = slots.texts, inner + 2 * groups * size
    length = part.count // texts

    u = convolved(p, layer, part, tp.cont(x[:, :channels]), f"{block}.ssm_conv1d.weight")
    u = tp.silu(tp.add(u, p.weights[f"{block}.ssm_conv1d.bias"]))
    values = tp.cont(u[:, :inner], (texts, length, heads, inner // heads))
    edges = inner, inner + groups * size, channels
    written, asked = (
        tp.cont(u[:, begin:end], (texts, length, groups, size))
        for begin, end in itertools.pairwise(edges)
    )
    step = tp.add(tp.cont(x[:, channels:]), p.weights[f"{block}.ssm_dt.bias"])
    if slots.real is not None:
        # No time passes in padding.
        step = tp.add(step, tp.scale(slots.real, LARGE, bias=-LARGE))

    states = p.states.states[layer]
    scan = tp.ssm_scan(
        tp.reshape(states, (p.states.texts, heads, inner // heads, size)),
        values,
        tp.reshape(step, (texts, length, heads)),
        p.weights[f"{block}.ssm_a"],
        written,
        asked,
        slots.reads,
        name=f"{block}.ssm_scan",
    )
    results = part.count * inner
    keep_state(p, layer, part, scan[results:])
    shape = (part.count, heads, inner // heads)
    passed = tp.mul(tp.reshape(values, shape), p.weights[f"{block}.ssm_d"])
    y = tp.add(tp.reshape(scan[:results], shape), passed)
    return tp.reshape(y, (part.count, inner))


MAMBA2 = Architecture(NAME, read, layer_tensors, forward)

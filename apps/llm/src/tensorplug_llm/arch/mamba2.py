"""Mamba-2 (Dao and Gu 2024, arXiv:2405.21060): layers of selective state spaces, no attention."""

import itertools

import tensorplug as tp
from tensorplug import Tensor
from tensorplug.gguf import ModelFile
from tensorplug_llm.arch.architecture import Architecture, Part, Pass
from tensorplug_llm.arch.blocks import embed, join, linear, logits, norm
from tensorplug_llm.arch.recurrent import (
    LARGE,
    by_part,
    convolved,
    keep_state,
    recurrence_of,
    slots_of,
)
from tensorplug_llm.arch.tables import Expected, linear_tensors, norm_tensors
from tensorplug_llm.hparams import (
    MOST_EMBEDDING,
    HParams,
    HParamsReader,
    Rope,
    layer_count,
    read_recurrence,
    vocabulary,
)

NAME = "mamba2"


def read(file: ModelFile) -> HParams:
    """Hyper-parameters of a Mamba-2 model, which has no attention."""
    read = HParamsReader(file, NAME)
    layers = layer_count(read)
    rope = Rope(dims=0, mode="neox", base=1.0)
    return HParams(
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
        recurrence=read_recurrence(read, frozenset(range(layers))),
    )


def layer_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors of one layer."""
    r = recurrence_of(hp)
    return (
        *norm_tensors(hp, "attn_norm"),
        *linear_tensors("ssm_in", hp.embedding, r.inner + r.channels + r.heads),
        Expected("ssm_conv1d.weight", (r.past + 1, r.channels), exact=True),
        Expected("ssm_conv1d.bias", (r.channels,)),
        Expected("ssm_dt.bias", (r.heads,)),
        Expected("ssm_a", (1, r.heads)),
        Expected("ssm_d", (1, r.heads)),
        Expected("ssm_norm.weight", (r.inner // r.groups, r.groups)),
        *linear_tensors("ssm_out", r.inner, hp.embedding),
    )


def forward(p: Pass) -> Tensor:
    """Logits; each block is normed on its way in."""
    x = embed(p)
    for i in range(p.hparams.layers):
        x = join(p, _mixed(p, i, norm(p, x, f"blk.{i}.attn_norm")), x, name=f"blk.{i}.out")
    return logits(p, x)


def _mixed(p: Pass, layer: int, x: Tensor) -> Tensor:
    """Tokens with what the states know of those before them, behind a gate."""
    r, block = recurrence_of(p.hparams), f"blk.{layer}"
    y = linear(p, x, f"{block}.ssm_in")
    gate, rest = y[:, : r.inner], y[:, r.inner :]
    scanned = by_part(p, rest, lambda part, rows: _scanned(p, layer, part, rows))
    gated = tp.reshape(tp.swiglu(gate, scanned), (p.tokens, r.groups, r.inner // r.groups))
    normed = tp.reshape(norm(p, gated, f"{block}.ssm_norm"), (p.tokens, r.inner))
    return linear(p, normed, f"{block}.ssm_out")


def _scanned(p: Pass, layer: int, part: Part, x: Tensor) -> Tensor:
    """The selective scan of the tokens of a part: f32 [inner, tokens]."""
    r, block, slots = recurrence_of(p.hparams), f"blk.{layer}", slots_of(part)
    assert p.states is not None
    inner, heads, groups, size, channels = r.inner, r.heads, r.groups, r.size, r.channels
    texts, length = slots.texts, part.count // slots.texts

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

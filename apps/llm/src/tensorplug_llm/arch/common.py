"""Blocks that the architectures share, and the tables of the tensors they need."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import tensorplug as tp
from tensorplug import Tensor
from tensorplug.gguf import GGUFFile
from tensorplug_llm.cache import KVCache, by_head
from tensorplug_llm.hparams import HParams, Rope


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor of the file: sizes in ggml order."""

    name: str
    ne: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens of a pass that one attention op takes: `count` of them from `first` on.

    Tokens that are `apart` belong to different sequences and share no keys: each is a batch entry
    of its own. The masks are f32, 0 where a token sees a row of the cache, else -inf:
    [rows, tokens], or [rows, 1, 1, tokens] where they are apart. Layers with a window read
    `local_mask`.
    """

    first: int
    count: int
    apart: bool
    mask: Tensor
    local_mask: Tensor


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a forward pass reads besides weights and cache: tokens of any sequences.

    `ids`, `positions` and `rows` (of the cache) are i32, one for each token. `chosen` are the
    tokens whose logits are wanted, i32; without it all are.
    """

    ids: Tensor
    positions: Tensor
    rows: Tensor
    parts: tuple[Part, ...]
    chosen: Tensor | None = None


@dataclass(slots=True)
class Pass:
    """One forward pass while its graph is built; attention sees the first `reach` cache rows."""

    hparams: HParams
    weights: Mapping[str, Tensor]
    cache: KVCache
    inputs: Inputs
    reach: int
    writes: list[Tensor] = field(default_factory=list)
    """Effects on the cache."""

    @property
    def tokens(self) -> int:
        """Tokens in the batch."""
        return self.inputs.ids.ne[0]


@dataclass(frozen=True, slots=True)
class Architecture:
    """What sets one family of models apart."""

    name: str
    read: Callable[[GGUFFile], HParams]
    layer_tensors: Callable[[HParams], tuple[Expected, ...]]
    """Tensors of one layer, named without the `blk.N.` before them."""
    forward: Callable[[Pass], Tensor]
    """Builds the logits, f32 [vocabulary, chosen tokens]."""

    def tensors(self, hparams: HParams) -> list[Expected]:
        """All tensors of the file."""
        layer = self.layer_tensors(hparams)
        return [
            *model_tensors(hparams),
            *(
                Expected(f"blk.{i}.{t.name}", t.ne, t.optional)
                for i in range(hparams.layers)
                for t in layer
            ),
        ]


# --- tables ------------------------------------------------------------------------------------


def model_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors outside the layers."""
    return (
        Expected("token_embd.weight", (hp.embedding, hp.vocabulary)),
        Expected("output_norm.weight", (hp.embedding,)),
        Expected("output.weight", (hp.embedding, hp.vocabulary), optional=True),
        Expected("output.bias", (hp.vocabulary,), optional=True),
        Expected("rope_freqs.weight", (hp.rope.dims // 2,), optional=True),
    )


def linear_tensors(name: str, inputs: int, outputs: int) -> tuple[Expected, ...]:
    """A matrix and the bias that it may have."""
    return (
        Expected(f"{name}.weight", (inputs, outputs)),
        Expected(f"{name}.bias", (outputs,), optional=True),
    )


def block_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Attention and feed-forward block with their norms."""
    queries, results = hp.heads * hp.key_length, hp.heads * hp.value_length
    return (
        Expected("attn_norm.weight", (hp.embedding,)),
        *linear_tensors("attn_q", hp.embedding, queries),
        *linear_tensors("attn_k", hp.embedding, hp.key_row),
        *linear_tensors("attn_v", hp.embedding, hp.value_row),
        *linear_tensors("attn_output", results, hp.embedding),
        Expected("ffn_norm.weight", (hp.embedding,)),
        *linear_tensors("ffn_gate", hp.embedding, hp.feed_forward),
        *linear_tensors("ffn_up", hp.embedding, hp.feed_forward),
        *linear_tensors("ffn_down", hp.feed_forward, hp.embedding),
    )


def head_norm_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Norms of the queries and keys of each head."""
    return (
        Expected("attn_q_norm.weight", (hp.key_length,)),
        Expected("attn_k_norm.weight", (hp.key_length,)),
    )


# --- blocks ------------------------------------------------------------------------------------


def embed(p: Pass) -> Tensor:
    """Rows of the embedding table for the tokens: f32 [embedding, tokens]."""
    x = tp.get_rows(p.weights["token_embd.weight"], p.inputs.ids, name="token_embd")
    factor = p.hparams.embedding_scale
    return x if factor == 1.0 else tp.scale(x, factor)


def linear(p: Pass, x: Tensor, name: str) -> Tensor:
    """`x` times the matrix `name`, plus its bias where there is one."""
    y = tp.mul_mat(p.weights[f"{name}.weight"], x, name=name)
    bias = p.weights.get(f"{name}.bias")
    return y if bias is None else tp.add(y, bias)


def norm(p: Pass, x: Tensor, name: str) -> Tensor:
    """RMS norm with the weight `name`."""
    normed = tp.rms_norm(x, eps=p.hparams.norm_eps, name=f"{name}.rms")
    return tp.mul(normed, p.weights[f"{name}.weight"], name=name)


def attention(p: Pass, layer: int, x: Tensor) -> Tensor:
    """Attention of the tokens to the cache and to themselves, which it writes there."""
    hp, block = p.hparams, f"blk.{layer}"
    turn = hp.local_rope if layer in hp.local_layers else hp.rope

    # Like work follows like: backends may do neighbours at once.
    q, k, v = (linear(p, x, f"{block}.attn_{part}") for part in "qkv")
    q = _heads(p, q, f"{block}.attn_q", hp.heads)
    k = _heads(p, k, f"{block}.attn_k", hp.kv_heads)
    q, k = (_turned(p, y, f"{block}.attn_{part}", turn) for part, y in (("q", q), ("k", k)))
    writes = p.cache.write(layer, tp.reshape(k, (p.tokens, hp.key_row)), v, p.inputs.rows)
    p.writes.extend(writes)
    keys, values = (by_head(table, hp.kv_heads, p.reach) for table in writes)

    seen = [_attended(p, layer, part, q, keys, values) for part in p.inputs.parts]
    y = seen[0] if len(seen) == 1 else tp.concat(*seen, axis=0)
    return linear(p, y, f"{block}.attn_output")


def _attended(p: Pass, layer: int, part: Part, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """What the tokens of a part see: f32 [heads * value length, tokens]."""
    hp = p.hparams
    if part.count < p.tokens:
        q = q[part.first : part.first + part.count]
    if part.apart:
        q = tp.reshape(q, (part.count, hp.heads, 1, hp.key_length))
    else:
        q = tp.permute(q, (1, 0, 2))
    y = tp.flash_attn_ext(
        q,
        keys,
        values,
        part.local_mask if layer in hp.local_layers else part.mask,
        scale=hp.attention_scale,
        name=f"blk.{layer}.attn",
    )
    return tp.reshape(y, (part.count, hp.heads * hp.value_length))


def _heads(p: Pass, x: Tensor, name: str, heads: int) -> Tensor:
    """Queries or keys [key length, heads, tokens], normed where the model says so."""
    y = tp.reshape(x, (p.tokens, heads, p.hparams.key_length))
    return norm(p, y, f"{name}_norm") if f"{name}_norm.weight" in p.weights else y


def _turned(p: Pass, x: Tensor, name: str, turn: Rope) -> Tensor:
    """`x` turned by the positions of its tokens."""
    return tp.rope(
        x,
        p.inputs.positions,
        p.weights.get("rope_freqs.weight"),
        dims=turn.dims,
        mode=turn.mode,
        base=turn.base,
        scale=turn.scale,
        original_context=turn.original_context,
        ext_factor=turn.ext_factor,
        attn_factor=turn.attn_factor,
        name=f"{name}_rope",
    )


def gated(p: Pass, layer: int, x: Tensor, activation: str) -> Tensor:
    """Gated feed-forward block; `activation` is one of `tensorplug.glu`."""
    block = f"blk.{layer}"
    gate, up = linear(p, x, f"{block}.ffn_gate"), linear(p, x, f"{block}.ffn_up")
    return linear(p, tp.glu(activation, gate, up, name=f"{block}.ffn_act"), f"{block}.ffn_down")


def logits(p: Pass, x: Tensor) -> Tensor:
    """Logits of the chosen tokens; the embedding table serves where there is no output matrix."""
    chosen = p.inputs.chosen
    if chosen is not None:
        x = tp.get_rows(x, chosen, name="chosen")
    x = norm(p, x, "output_norm")
    if "output.weight" in p.weights:
        y = linear(p, x, "output")
    else:
        y = tp.mul_mat(p.weights["token_embd.weight"], x, name="output")
    cap = p.hparams.logit_softcap
    return tp.scale(tp.tanh(tp.scale(y, 1.0 / cap)), cap) if cap else y

"""The tensors of a file: `Expected`, and tables that many architectures share."""

from dataclasses import dataclass

from tensorplug_llm.hparams import Experts, HParams


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor of the file: sizes in ggml order."""

    name: str
    ne: tuple[int, ...]
    optional: bool = False
    exact: bool = False
    """Whether an op other than a product reads it, such as a convolution over time."""

    @property
    def is_matrix(self) -> bool:
        """Whether products read the tensor. All others must be f32."""
        is_weight = self.name.endswith(".weight") and "_norm" not in self.name
        return len(self.ne) > 1 and is_weight and not self.exact


def model_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Tensors outside the layers."""
    return (
        Expected("token_embd.weight", (hp.embedding, hp.vocabulary)),
        Expected("output_norm.weight", (hp.embedding,)),
        Expected("output.weight", (hp.embedding, hp.vocabulary), optional=True),
        Expected("output.bias", (hp.vocabulary,), optional=True),
        Expected("rope_freqs.weight", (hp.rope.dims // 2,), optional=True),
    )


def long_context_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Factors of rotary frequencies, one set for short and one for long contexts (LongRoPE)."""
    return tuple(
        Expected(f"rope_factors_{kind}.weight", (hp.rope.dims // 2,), optional=True)
        for kind in ("short", "long")
    )


def linear_tensors(name: str, inputs: int, outputs: int) -> tuple[Expected, ...]:
    """A matrix and the bias that it may have."""
    return (
        Expected(f"{name}.weight", (inputs, outputs)),
        Expected(f"{name}.bias", (outputs,), optional=True),
    )


def norm_tensors(hp: HParams, *names: str) -> tuple[Expected, ...]:
    """Norms of the stream."""
    return tuple(Expected(f"{name}.weight", (hp.embedding,)) for name in names)


def attention_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Queries, keys, values and output of attention."""
    queries, results = hp.heads * hp.key_length, hp.heads * hp.value_length
    return (
        *linear_tensors("attn_q", hp.embedding, queries),
        *linear_tensors("attn_k", hp.embedding, hp.key_row),
        *linear_tensors("attn_v", hp.embedding, hp.value_row),
        *linear_tensors("attn_output", results, hp.embedding),
    )


def packed_attention_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Attention whose matrix `attn_qkv` has the rows of queries, then keys, then values."""
    rows = hp.heads * hp.key_length + hp.key_row + hp.value_row
    return (
        *linear_tensors("attn_qkv", hp.embedding, rows),
        *linear_tensors("attn_output", hp.heads * hp.value_length, hp.embedding),
    )


def head_norm_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Norms of the queries and keys of each head."""
    return (
        Expected("attn_q_norm.weight", (hp.key_length,)),
        Expected("attn_k_norm.weight", (hp.key_length,)),
    )


def row_norm_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Norms over the queries and over the keys of all heads together."""
    return (
        Expected("attn_q_norm.weight", (hp.heads * hp.key_length,)),
        Expected("attn_k_norm.weight", (hp.key_row,)),
    )


def gated_tensors(hp: HParams) -> tuple[Expected, ...]:
    """A gated feed-forward block."""
    return (
        *linear_tensors("ffn_gate", hp.embedding, hp.feed_forward),
        *linear_tensors("ffn_up", hp.embedding, hp.feed_forward),
        *linear_tensors("ffn_down", hp.feed_forward, hp.embedding),
    )


def fused_gated_tensors(hp: HParams) -> tuple[Expected, ...]:
    """A gated feed-forward block whose `ffn_up` holds the rows of the gate, then those of up."""
    return (
        *linear_tensors("ffn_up", hp.embedding, 2 * hp.feed_forward),
        *linear_tensors("ffn_down", hp.feed_forward, hp.embedding),
    )


def block_tensors(hp: HParams) -> tuple[Expected, ...]:
    """Attention and feed-forward block, gated or a mixture of experts, with their norms."""
    return (
        *norm_tensors(hp, "attn_norm", "ffn_norm"),
        *attention_tensors(hp),
        *(expert_tensors(hp, hp.experts) if hp.experts else gated_tensors(hp)),
    )


def expert_tensors(hp: HParams, experts: Experts) -> tuple[Expected, ...]:
    """A mixture of gated experts: its router, the experts, and the shared one if there is one."""
    count, inner = experts.count, experts.feed_forward
    shared = experts.shared_feed_forward
    found = [
        *linear_tensors("ffn_gate_inp", hp.embedding, count),
        Expected("ffn_gate_exps.weight", (hp.embedding, inner, count)),
        Expected("ffn_up_exps.weight", (hp.embedding, inner, count)),
        Expected("ffn_down_exps.weight", (inner, hp.embedding, count)),
    ]
    if shared:
        found += [
            Expected("ffn_gate_shexp.weight", (hp.embedding, shared)),
            Expected("ffn_up_shexp.weight", (hp.embedding, shared)),
            Expected("ffn_down_shexp.weight", (shared, hp.embedding)),
        ]
    return tuple(found)

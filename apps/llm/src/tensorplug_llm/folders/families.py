"""Families of models by the `model_type` of their config.json: their names, as data.

Names are those of Hugging Face's `transformers`, where each family is one `modeling_*.py`; names in
GGUF are those of the tables of tensors in `arch/`. What the numbers of config.json mean follows
`configuration_*.py` there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tensorplug_llm.folders.jsonfile import Fields

Numbers = dict[str, Any]
"""Metadata of a GGUF file, without the name of the architecture before the keys."""

MODEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
GATED = {
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
FUSED_GATED = {"ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}
PRE_NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
BLOCK = {**PRE_NORMS, **ATTENTION}
EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
    "ffn_up_exps": "mlp.experts.{expert}.up_proj",
    "ffn_down_exps": "mlp.experts.{expert}.down_proj",
}
SANDWICH = {
    "attn_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Models of one `model_type`."""

    architecture: str
    """The name of its architecture here and in GGUF files."""
    layer: Mapping[str, str]
    """Names of tensors of a layer: in GGUF, and after `model.layers.N.`; without `.weight`.

    `{expert}` stands for the number of an expert: the matrices of all are stored as one. A name
    that ends with `#0/2` or `#1/2` is the first or the second half of the rows of each matrix.
    """
    read: Callable[[Fields], Numbers] = field(default=lambda _config: {})
    """Metadata beyond that of all families."""
    model: Mapping[str, str] = field(default_factory=lambda: MODEL)
    """Names of tensors outside the layers."""
    layers: str = "model.layers"
    """What stands before the number of a layer."""
    prefixes: tuple[str, ...] = ("",)
    """What may stand before all names: models saved with other heads have more."""
    left_out: str = r"(?!)"
    """A pattern of names of tensors that nothing is computed with."""
    first_rows: Mapping[str, int] = field(default_factory=dict)
    """Rows of tables that come before the first one in GGUF."""
    turns_halves: bool = True
    """Whether the architecture turns halves of heads, as Hugging Face does.

    Otherwise the rows of queries and keys are put in another order, so that pairs turn.
    """
    norm_plus: float = 0.0
    """What is added to the weights of norms: Gemma's are stored without 1."""
    norm_eps: str = "rms_norm_eps"
    activations: tuple[str, ...] = ("silu", "swish")
    """The functions of the feed-forward block that the architecture means."""


def fixed(config: Fields, key: str, expected: object, default: object) -> None:
    """Raise FormatError unless a setting is the one that the architecture has built in."""
    value = config.values.get(key)
    if (default if value is None else value) != expected:
        raise config.error(key, f"only models with {expected!r} are supported")


def _window(config: Fields) -> Numbers:
    return {"attention.sliding_window": config.size("sliding_window")}


def _pattern(config: Fields) -> Numbers:
    """Which layers look at a window only; without a word of it, as the architecture knows."""
    if config.has("layer_types"):
        kinds = config.array("layer_types")
        if not set(map(str, kinds)) <= {"sliding_attention", "full_attention"}:
            raise config.error("layer_types", "known are sliding_attention and full_attention")
        is_local = np.array([kind == "sliding_attention" for kind in kinds])
        return {"attention.sliding_window_pattern": is_local}
    if config.has("sliding_window_pattern"):
        return {"attention.sliding_window_pattern": config.size("sliding_window_pattern")}
    return {}


def _within_window(config: Fields) -> Numbers:
    """A context that a window does not cut, where the architecture here has no window."""
    most = config.size("max_position_embeddings")
    if config.has("sliding_window") and config.flag("use_sliding_window", default=True):
        most = min(most, config.size("sliding_window"))
    return {"context_length": most}


def _mixtral(config: Fields) -> Numbers:
    return {
        "expert_count": config.size("num_local_experts"),
        "expert_used_count": config.size("num_experts_per_tok"),
        **_within_window(config),
    }


def _qwen_experts(config: Fields, *, normalized: bool) -> Numbers:
    fixed(config, "norm_topk_prob", expected=normalized, default=False)
    fixed(config, "decoder_sparse_step", 1, 1)
    fixed(config, "mlp_only_layers", [], [])
    return {
        "expert_count": config.size("num_experts"),
        "expert_used_count": config.size("num_experts_per_tok"),
        "expert_feed_forward_length": config.size("moe_intermediate_size"),
        **_within_window(config),
    }


def _qwen2moe(config: Fields) -> Numbers:
    shared = config.size("shared_expert_intermediate_size")
    found = _qwen_experts(config, normalized=False)
    return {**found, "expert_shared_feed_forward_length": shared}


def _qwen3moe(config: Fields) -> Numbers:
    return _qwen_experts(config, normalized=True)


def _olmoe(config: Fields) -> Numbers:
    fixed(config, "norm_topk_prob", expected=False, default=False)
    fixed(config, "clip_qkv", None, None)
    return {
        "expert_count": config.size("num_experts"),
        "expert_used_count": config.size("num_experts_per_tok"),
    }


def _granite(config: Fields) -> Numbers:
    return {
        "embedding_scale": config.number("embedding_multiplier"),
        "residual_scale": config.number("residual_multiplier"),
        "attention.scale": config.number("attention_multiplier"),
        "logit_scale": config.number("logits_scaling"),
    }


def _granitemoe(config: Fields) -> Numbers:
    shared = {}
    if config.has("shared_intermediate_size"):
        shared = {"expert_shared_feed_forward_length": config.size("shared_intermediate_size")}
    return {
        **_granite(config),
        "expert_count": config.size("num_local_experts"),
        "expert_used_count": config.size("num_experts_per_tok"),
        **shared,
    }


def _gemma(config: Fields, every: int) -> Numbers:
    """Of both Gemmas; scores are scaled by the length of a head, as the architectures have it."""
    length = config.size("head_dim", 256)
    wanted = config.number("query_pre_attn_scalar", 256.0)
    of_27b = config.size("hidden_size") // config.size("num_attention_heads")
    if wanted != (of_27b if config.size("num_hidden_layers") == every else length):
        raise config.error("query_pre_attn_scalar", "the architecture scales by the head's length")
    caps = {}
    if config.has("final_logit_softcapping"):
        caps = {"final_logit_softcapping": config.number("final_logit_softcapping")}
    return {**_window(config), **_pattern(config), **caps}


def _gemma2(config: Fields) -> Numbers:
    cap = config.number("attn_logit_softcapping", 50.0)
    return {**_gemma(config, 46), "attn_logit_softcapping": cap}


def _gemma3(config: Fields) -> Numbers:
    fixed(config, "attn_logit_softcapping", None, None)
    local = config.section("rope_parameters").section("sliding_attention")
    base = local.number("rope_theta", config.number("rope_local_base_freq", 10000.0))
    return {**_gemma(config, 62), "rope.freq_base_swa": base}


def _olmo3(config: Fields) -> Numbers:
    return {**_window(config), **_pattern(config)}


def _smollm3(config: Fields) -> Numbers:
    layers = config.size("num_hidden_layers")
    if config.has("no_rope_layers"):
        turned = [int((i + 1) % 4 != 0) for i in range(min(layers, 1 << 12))]
        fixed(config, "no_rope_layers", turned, turned)
    fixed(config, "use_sliding_window", expected=False, default=False)
    return {}


def _partial(config: Fields) -> Numbers:
    """The part of each head that turns."""
    heads = config.size("num_attention_heads")
    length = config.size("head_dim", config.size("hidden_size") // heads)
    rope = config.section("rope_parameters")
    share = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    return {"rope.dimension_count": int(length * share)}


def _cohere(config: Fields) -> Numbers:
    has_norms = config.flag("use_qk_norm", default=False)
    if has_norms != (config.size("num_hidden_layers") >= 64):
        raise config.error("use_qk_norm", "only models of at least 64 layers have these norms")
    return {"logit_scale": config.number("logit_scale", 0.0625)}


def _bert(config: Fields) -> Numbers:
    fixed(config, "position_embedding_type", "absolute", "absolute")
    fixed(config, "is_decoder", expected=False, default=False)
    return {"attention.causal": False}


def _xlm_roberta(config: Fields) -> Numbers:
    """Positions begin behind the padding token: its row and those before it are not used."""
    fixed(config, "pad_token_id", 1, 1)
    return {**_bert(config), "context_length": config.size("max_position_embeddings") - 2}


_BERT = Family(
    architecture="bert",
    model={
        "token_embd": "embeddings.word_embeddings",
        "position_embd": "embeddings.position_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "token_embd_norm": "embeddings.LayerNorm",
    },
    layers="encoder.layer",
    layer={
        "attn_q": "attention.self.query",
        "attn_k": "attention.self.key",
        "attn_v": "attention.self.value",
        "attn_output": "attention.output.dense",
        "attn_output_norm": "attention.output.LayerNorm",
        "ffn_up": "intermediate.dense",
        "ffn_down": "output.dense",
        "layer_output_norm": "output.LayerNorm",
    },
    prefixes=("", "bert.", "roberta."),
    left_out=r"embeddings\.position_ids|pooler\.dense\.(weight|bias)",
    norm_eps="layer_norm_eps",
    activations=("gelu",),
    read=_bert,
)
_LLAMA = Family(
    architecture="llama", layer={**BLOCK, **GATED}, turns_halves=False, read=_within_window
)
_GEMMA_GELU = ("gelu_pytorch_tanh", "gelu_tanh")

FAMILIES: Mapping[str, Family] = {
    "bert": _BERT,
    "xlm-roberta": replace(_BERT, read=_xlm_roberta, first_rows={"position_embd": 2}),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": Family(
        architecture="llama",
        layer={
            **BLOCK,
            "ffn_gate_inp": "block_sparse_moe.gate",
            "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
            "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
            "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
        },
        turns_halves=False,
        read=_mixtral,
    ),
    "qwen2": Family(architecture="qwen2", layer={**BLOCK, **GATED}, read=_within_window),
    "qwen2_moe": Family(
        architecture="qwen2moe",
        layer={
            **BLOCK,
            **EXPERTS,
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
            "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
            "ffn_up_shexp": "mlp.shared_expert.up_proj",
            "ffn_down_shexp": "mlp.shared_expert.down_proj",
        },
        read=_qwen2moe,
    ),
    "qwen3": Family(
        architecture="qwen3", layer={**BLOCK, **HEAD_NORMS, **GATED}, read=_within_window
    ),
    "qwen3_moe": Family(
        architecture="qwen3moe", layer={**BLOCK, **HEAD_NORMS, **EXPERTS}, read=_qwen3moe
    ),
    "gemma2": Family(
        architecture="gemma2",
        layer={**SANDWICH, **ATTENTION, **GATED},
        norm_plus=1.0,
        activations=_GEMMA_GELU,
        read=_gemma2,
    ),
    "gemma3_text": Family(
        architecture="gemma3",
        layer={**SANDWICH, **ATTENTION, **HEAD_NORMS, **GATED},
        norm_plus=1.0,
        activations=_GEMMA_GELU,
        read=_gemma3,
    ),
    **dict.fromkeys(
        ("olmo2", "olmo3"),
        Family(
            architecture="olmo2",
            layer={
                **ATTENTION,
                **HEAD_NORMS,
                **GATED,
                "post_attention_norm": "post_attention_layernorm",
                "post_ffw_norm": "post_feedforward_layernorm",
            },
            read=lambda config: _olmo3(config) if config.has("layer_types") else {},
        ),
    ),
    "olmoe": Family(architecture="olmoe", layer={**BLOCK, **HEAD_NORMS, **EXPERTS}, read=_olmoe),
    "granite": Family(
        architecture="granite", layer={**BLOCK, **GATED}, turns_halves=False, read=_granite
    ),
    **dict.fromkeys(
        ("granitemoe", "granitemoeshared"),
        Family(
            architecture="granitemoe",
            layer={
                **BLOCK,
                "ffn_gate_inp": "block_sparse_moe.router.layer",
                "ffn_gate_exps": "block_sparse_moe.input_linear#0/2",
                "ffn_up_exps": "block_sparse_moe.input_linear#1/2",
                "ffn_down_exps": "block_sparse_moe.output_linear",
                "ffn_gate_shexp": "shared_mlp.input_linear#0/2",
                "ffn_up_shexp": "shared_mlp.input_linear#1/2",
                "ffn_down_shexp": "shared_mlp.output_linear",
            },
            turns_halves=False,
            read=_granitemoe,
        ),
    ),
    "smollm3": Family(
        architecture="smollm3", layer={**BLOCK, **GATED}, turns_halves=False, read=_smollm3
    ),
    "phi3": Family(
        architecture="phi3",
        layer={
            **PRE_NORMS,
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            **FUSED_GATED,
        },
        read=lambda config: {**_partial(config), **_within_window(config)},
    ),
    "starcoder2": Family(
        architecture="starcoder2",
        layer={**BLOCK, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        norm_eps="norm_epsilon",
        activations=_GEMMA_GELU,
        read=_within_window,
    ),
    # Both of these turn pairs in Hugging Face too.
    "cohere": Family(
        architecture="command-r",
        layer={"attn_norm": "input_layernorm", **ATTENTION, **HEAD_NORMS, **GATED},
        norm_eps="layer_norm_eps",
        read=_cohere,
    ),
    "glm4": Family(
        architecture="glm4",
        layer={
            "attn_norm": "input_layernorm",
            "post_attention_norm": "post_self_attn_layernorm",
            "ffn_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
            **ATTENTION,
            **FUSED_GATED,
        },
        read=_partial,
    ),
}
"""Families by `model_type`."""

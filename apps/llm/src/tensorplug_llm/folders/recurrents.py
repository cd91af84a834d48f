"""Families of models with recurrent layers: LFM2, Mamba-2 and Qwen3-Next.

Names and settings are those of `transformers`: models/lfm2, models/mamba2 and models/qwen3_next.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tensorplug.device import Array
from tensorplug.gguf.cursor import FETCH_AGAIN
from tensorplug_llm.folders.family import (
    ATTENTION,
    EXPERTS,
    HEAD_NORMS,
    SHARED_EXPERT,
    Family,
    Numbers,
)
from tensorplug_llm.folders.jsonfile import Fields
from tensorplug_llm.folders.made import Order
from tensorplug_llm.folders.readers import OTHER, fixed, partly_turned, qwen_experts
from tensorplug_llm.folders.recipes import Chosen, Few

MOST_LAYERS = 1 << 12
"""Layers of the deepest model whose list of kinds is compared."""


def _rate(values: Array) -> Array:
    """The rates at which states decay, of their logarithms."""
    return -np.exp(values)


def _lfm2(config: Fields) -> Numbers:
    layers = min(config.size("num_hidden_layers"), MOST_LAYERS)
    if config.has("layer_types"):
        kinds = config.array("layer_types")
        if len(kinds) != layers or not set(map(str, kinds)) <= {"conv", "full_attention"}:
            raise config.error(
                "layer_types",
                f"conv or full_attention is needed for each of {layers} layers; {FETCH_AGAIN}",
            )
        attends = [kind == "full_attention" for kind in kinds]
    else:
        places = config.array("full_attn_idxs")
        if not all(type(i) is int and 0 <= i < layers for i in places):
            raise config.error(
                "full_attn_idxs", f"numbers of layers below {layers} are needed; {FETCH_AGAIN}"
            )
        attends = [i in set(places) for i in range(layers)]
    heads = config.size("num_key_value_heads", config.size("num_attention_heads"))
    return {
        "attention.head_count_kv": np.array([heads * here for here in attends], np.int32),
        "feed_forward_length": _lfm2_rows(config),
        "shortconv.l_cache": config.size("conv_L_cache"),
    }


def _lfm2_rows(config: Fields) -> int:
    """Rows of the feed-forward block: two thirds, in whole multiples."""
    rows = config.size("intermediate_size")
    if not config.flag("block_auto_adjust_ff_dim", default=True):
        return rows
    rows = int(config.number("block_ffn_dim_multiplier", 1.0) * int(2 * rows / 3))
    multiple = config.size("block_multiple_of", 256)
    return -(-rows // multiple) * multiple


def _mamba2(config: Fields) -> Numbers:
    for key in ("use_conv_bias", "rms_norm"):
        fixed(config, key, expected=True, default=True)
    fixed(config, "mlp_intermediate_size", 0, 0)
    limit = config.get("time_step_limit")
    # transformers writes infinity in two ways.
    if limit not in (None, [0.0, math.inf], [0.0, {"__float__": "Infinity"}]):
        raise config.error("time_step_limit", f"only models without a limit are supported; {OTHER}")
    heads = config.size("num_heads")
    inner = heads * config.size("head_dim")
    if inner != (wanted := int(config.number("expand", 2.0) * config.size("hidden_size"))):
        raise config.error(
            "head_dim", f"{heads} heads of this length do not make {wanted}; {FETCH_AGAIN}"
        )
    return {
        "context_length": config.size("max_position_embeddings", 1 << 20),
        "ssm.conv_kernel": config.size("conv_kernel"),
        "ssm.inner_size": inner,
        "ssm.state_size": config.size("state_size"),
        "ssm.time_step_rank": heads,
        "ssm.group_count": config.size("n_groups"),
    }


def _qwen3next(config: Fields) -> Numbers:
    layers = min(config.size("num_hidden_layers"), MOST_LAYERS)
    every = config.size("full_attention_interval", 4)
    if config.has("layer_types"):
        kinds = [f"{'linear' if i % every else 'full'}_attention" for i in range(1, layers + 1)]
        fixed(config, "layer_types", kinds, kinds)
    keys, values = config.size("linear_key_head_dim"), config.size("linear_value_head_dim")
    if keys != values:
        raise config.error(
            "linear_value_head_dim", f"it must be linear_key_head_dim, {keys}; {OTHER}"
        )
    heads = config.size("linear_num_value_heads")
    return {
        **qwen_experts(config, normalized=True, shared=True),
        **partly_turned(config, 0.25),
        "full_attention_interval": every,
        "ssm.conv_kernel": config.size("linear_conv_kernel_dim"),
        "ssm.inner_size": heads * values,
        "ssm.state_size": keys,
        "ssm.time_step_rank": heads,
        "ssm.group_count": config.size("linear_num_key_heads"),
    }


def _rows_of_groups(numbers: Mapping[str, Any], rows: int) -> Order | None:
    """All rows by groups: a query, a key, values and their gates; None where these do not fit."""
    groups, inner = numbers["ssm.group_count"], numbers["ssm.inner_size"]
    if rows != 2 * groups * numbers["ssm.state_size"] + 2 * inner or inner % groups:
        return None
    return np.arange(rows).reshape(groups, -1)


def _queries_keys_values(numbers: Mapping[str, Any], rows: int) -> Order | None:
    grouped = _rows_of_groups(numbers, rows)
    if grouped is None:
        return None
    size = numbers["ssm.state_size"]
    ends = [size, 2 * size, 2 * size + numbers["ssm.inner_size"] // len(grouped)]
    return np.concatenate([part.reshape(-1) for part in np.split(grouped, ends, axis=1)[:3]])


def _gates(numbers: Mapping[str, Any], rows: int) -> Order | None:
    grouped = _rows_of_groups(numbers, rows)
    if grouped is None:
        return None
    return grouped[:, -(numbers["ssm.inner_size"] // len(grouped)) :].reshape(-1)


RECURRENT: Mapping[str, Family] = {
    "lfm2": Family(
        architecture="lfm2",
        model={
            "token_embd": "model.embed_tokens",
            "token_embd_norm": "model.embedding_norm",
            "output": "lm_head",
        },
        layer={
            "attn_norm": "operator_norm",
            **ATTENTION,
            "attn_output": "self_attn.out_proj",
            "attn_q_norm": "self_attn.q_layernorm",
            "attn_k_norm": "self_attn.k_layernorm",
            "shortconv.in_proj": "conv.in_proj",
            "shortconv.out_proj": "conv.out_proj",
            "ffn_norm": "ffn_norm",
            "ffn_gate": "feed_forward.w1",
            "ffn_up": "feed_forward.w3",
            "ffn_down": "feed_forward.w2",
        },
        recipes={"shortconv.conv.weight": Few("conv.conv.weight")},
        keys={"intermediate_size": "block_ff_dim"},
        rope_base=1000000.0,
        norm_eps="norm_eps",
        read=_lfm2,
    ),
    "mamba2": Family(
        architecture="mamba2",
        model={
            "token_embd": "backbone.embeddings",
            "output_norm": "backbone.norm_f",
            "output": "lm_head",
        },
        layers="backbone.layers",
        layer={
            "attn_norm": "norm",
            "ssm_in": "mixer.in_proj",
            "ssm_out": "mixer.out_proj",
        },
        recipes={
            "ssm_conv1d.weight": Few("mixer.conv1d.weight"),
            "ssm_conv1d.bias": Few("mixer.conv1d.bias"),
            "ssm_dt.bias": Few("mixer.dt_bias"),
            "ssm_a": Few("mixer.A_log", _rate, rows="ssm.time_step_rank"),
            "ssm_d": Few("mixer.D", rows="ssm.time_step_rank"),
            "ssm_norm.weight": Few("mixer.norm.weight", rows="ssm.group_count"),
        },
        has_attention=False,
        norm_eps="layer_norm_epsilon",
        read=_mamba2,
    ),
    "qwen3_next": Family(
        architecture="qwen3next",
        layer={
            "attn_norm": "input_layernorm",
            "post_attention_norm": "post_attention_layernorm",
            **ATTENTION,
            **HEAD_NORMS,
            "ssm_ba": "linear_attn.in_proj_ba",
            "ssm_out": "linear_attn.out_proj",
            **EXPERTS,
            **SHARED_EXPERT,
        },
        recipes={
            "attn_qkv.weight": Chosen("linear_attn.in_proj_qkvz.weight", _queries_keys_values),
            "attn_gate.weight": Chosen("linear_attn.in_proj_qkvz.weight", _gates),
            "ssm_conv1d.weight": Few("linear_attn.conv1d.weight"),
            "ssm_dt.bias": Few("linear_attn.dt_bias"),
            "ssm_a": Few("linear_attn.A_log", _rate),
            "ssm_norm.weight": Few("linear_attn.norm.weight"),
        },
        # What guesses several tokens at once.
        left_out=r"mtp\..*",
        norm_plus=1.0,
        read=_qwen3next,
    ),
}
"""Models with recurrent layers by `model_type`."""

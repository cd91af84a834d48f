"""config.json as metadata of a GGUF file: sizes, and rotary positions with their stretching."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tensorplug.device import Array
from tensorplug.errors import FormatError
from tensorplug_llm.arch.registry import architectures_of_others
from tensorplug_llm.folders.families import FAMILIES
from tensorplug_llm.folders.family import Family, Numbers
from tensorplug_llm.folders.jsonfile import Fields, read_object
from tensorplug_llm.folders.readers import OTHER

COMPOSITES = {"gemma3": "gemma3_text"}
"""Models with images whose text part, `text_config`, is read."""


@dataclass(frozen=True, slots=True)
class Config:
    """What a config.json says."""

    fields: Fields
    family: Family
    prefix: str
    """What stands before the names of tensors of a model with images too."""
    numbers: Numbers
    """Metadata, without the architecture before the keys."""
    factors: dict[str, Array] = field(default_factory=dict)
    """Factors of rotary frequencies, by the names of their tensors."""


def read_config(path: Path) -> Config:
    """Read a config.json. Raises FormatError."""
    whole = fields = Fields(read_object(path), str(path))
    kind, prefix = fields.text("model_type"), ""
    if kind in COMPOSITES:
        fields, kind, prefix = fields.section("text_config"), COMPOSITES[kind], "language_model."
    family = _family(fields, kind)
    _refuse_quantized(whole, family)
    fields = fields.renamed(family.keys)
    _check_activation(fields, family)
    numbers = _sizes(fields, family) | family.read(fields)
    rope, factors = _rope(fields, family, numbers) if family.has_attention else ({}, {})
    return Config(fields, family, prefix, numbers | rope, factors)


def _family(fields: Fields, kind: str) -> Family:
    """The family of a `model_type`: one from here, or one of an architecture of others."""
    if kind in FAMILIES:
        family = FAMILIES[kind]
        if not fields.flag("use_bidirectional_attention", default=False):
            return family
        if family.bidirectional is None:
            raise fields.error(
                "use_bidirectional_attention", f"this architecture looks back only; {OTHER}"
            )
        return family.bidirectional
    others = {
        name: family
        for architecture in architectures_of_others()
        for name, family in architecture.families.items()
    }
    if kind in others:
        return others[kind]
    raise fields.error(
        "model_type",
        f"known are {', '.join(sorted({*FAMILIES, *COMPOSITES, *others}))}; use a model of these, "
        "or a GGUF file of this one",
    )


def _refuse_quantized(fields: Fields, family: Family) -> None:
    if not fields.has("quantization_config"):
        return
    method = fields.section("quantization_config").text("quant_method", "unknown")
    if method != family.quantization:
        raise FormatError(
            f"{fields.what}: the weights are quantised by {method[:40]!r}, and f32, f16 and bf16 "
            "are read; use the model that this one was made from, or a GGUF file"
        )


def _check_activation(fields: Fields, family: Family) -> None:
    key = "hidden_activation" if fields.has("hidden_activation") else "hidden_act"
    name = fields.text(key, family.activations[0])
    if name not in family.activations:
        raise fields.error(key, f"this architecture has {' or '.join(family.activations)}")


def _sizes(fields: Fields, family: Family) -> Numbers:
    embedding = fields.size("hidden_size")
    found = {
        "embedding_length": embedding,
        "block_count": fields.size("num_hidden_layers"),
        f"attention.layer_norm_{'rms_' if family.is_rms else ''}epsilon": fields.number(
            family.norm_eps, 1e-6
        ),
    }
    if not family.has_attention:
        return found | dict.fromkeys(("attention.head_count", "feed_forward_length"), 0)
    heads = fields.size("num_attention_heads")
    default = 256 if family.architecture.startswith("gemma") else max(embedding // heads, 1)
    head = fields.size("head_dim", default)
    return found | {
        "context_length": fields.size("max_position_embeddings"),
        "feed_forward_length": fields.size("intermediate_size"),
        "attention.head_count": heads,
        "attention.head_count_kv": fields.size("num_key_value_heads", heads),
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.dimension_count": head,
    }


def _rope(fields: Fields, family: Family, numbers: Numbers) -> tuple[Numbers, dict[str, Array]]:
    """Base and stretching of rotary positions, and factors of frequencies."""
    given = fields.section("rope_parameters")
    if given.has("full_attention"):
        given = given.section("full_attention")
    scaling = fields.section("rope_scaling") if fields.has("rope_scaling") else given
    base = given.number("rope_theta", fields.number("rope_theta", family.rope_base))
    found: Numbers = {"rope.freq_base": base}
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    # A dynamic stretch begins beyond the context that the model was trained for.
    if kind in ("default", "dynamic"):
        return found, {}
    if kind == "llama3":
        return found, {"rope_freqs.weight": _llama3(scaling, base, numbers)}
    if kind == "linear":
        return found | _stretch("linear", scaling.number("factor")), {}
    if kind == "yarn":
        return found | _yarn(scaling, numbers), {}
    if kind in ("longrope", "su"):
        return _long(fields, scaling, found, numbers)
    raise scaling.error(
        "rope_type" if scaling.has("rope_type") else "type",
        "known are default, dynamic, linear, llama3, longrope and yarn",
    )


def _stretch(kind: str, factor: float) -> Numbers:
    return {"rope.scaling.type": kind, "rope.scaling.factor": factor}


def _llama3(scaling: Fields, base: float, numbers: Numbers) -> Array:
    """Divisors of the frequencies (Llama Team 2024): slow ones are stretched, fast ones are not."""
    factor = scaling.number("factor")
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    trained = scaling.size("original_max_position_embeddings")
    if not low < high:
        raise scaling.error("high_freq_factor", f"it must be above low_freq_factor, {low}")
    dims = _rotary(scaling, numbers)
    wavelengths = 2 * math.pi * base ** (np.arange(0, dims, 2) / dims)
    smooth = np.clip((trained / wavelengths - low) / (high - low), 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)


def _yarn(scaling: Fields, numbers: Numbers) -> Numbers:
    """YaRN (Peng et al. 2023, arXiv:2309.00071); the factor of attention follows the stretch.

    The ends of the ramp are whole, also where `truncate` is false (gpt-oss): as in llama.cpp.
    """
    factor = scaling.number("factor")
    usual = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    if abs(scaling.number("attention_factor", usual) - usual) > 1e-3:
        raise scaling.error("attention_factor", f"only {usual:.4f} is supported with this factor")
    for key in ("mscale", "mscale_all_dim"):
        if scaling.has(key):
            raise scaling.error(key, "it is not supported")
    trained = scaling.size("original_max_position_embeddings", numbers["context_length"])
    return _stretch("yarn", factor) | {
        "rope.scaling.original_context_length": trained,
        "rope.scaling.yarn_beta_fast": scaling.number("beta_fast", 32.0),
        "rope.scaling.yarn_beta_slow": scaling.number("beta_slow", 1.0),
    }


def _long(
    fields: Fields, scaling: Fields, found: Numbers, numbers: Numbers
) -> tuple[Numbers, dict[str, Array]]:
    """LongRoPE: a factor for each frequency, others for contexts beyond the trained one."""
    context = numbers["context_length"]
    trained = fields.size(
        "original_max_position_embeddings",
        scaling.size("original_max_position_embeddings", context),
    )
    factors = {}
    for kind in ("short", "long"):
        values = scaling.numbers(f"{kind}_factor")
        if len(values) != _rotary(scaling, numbers) // 2:
            raise scaling.error(f"{kind}_factor", "there must be one for each frequency")
        factors[f"rope_factors_{kind}.weight"] = np.array(values, np.float32)
    longer = fields.size("max_position_embeddings") / trained
    usual = math.sqrt(1 + math.log(longer) / math.log(trained)) if longer > 1 else 1.0
    return found | {
        "rope.scaling.type": "longrope",
        "rope.scaling.original_context_length": trained,
        "rope.scaling.attn_factor": scaling.number("attention_factor", usual),
    }, factors


def _rotary(scaling: Fields, numbers: dict[str, Any]) -> int:
    """Elements of a head that turn; there is a frequency for each two of them."""
    dims = int(numbers["rope.dimension_count"])
    if not 0 < dims <= 1 << 16 or dims % 2:
        raise FormatError(f"{scaling.what}: heads of which {dims} elements turn; it must be even")
    return dims

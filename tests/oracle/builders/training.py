"""Gradients, losses and steps of optimizers."""

from oracle.builders.table import Use, builds, direct
from oracle.ggml import Ggml

for _name in ("silu_back", "cross_entropy_loss", "cross_entropy_loss_back"):
    direct(_name)

direct("rms_norm_back", arguments="f eps")


@builds("soft_max_back")
def _soft_max_back(ggml: Ggml, use: Use) -> int:
    scale = use.params["scale"]
    return ggml.build("ggml_soft_max_ext_back", "ttff", *use.sources, scale, 0.0)


@builds("opt_step_adamw")
def _opt_step_adamw(ggml: Ggml, use: Use) -> int:
    return _step(ggml, use)


@builds("opt_step_sgd")
def _opt_step_sgd(ggml: Ggml, use: Use) -> int:
    return _step(ggml, use)


def _step(ggml: Ggml, use: Use) -> int:
    """What is written over must be marked as trainable."""
    ggml.typed("ggml_set_param", "-t")(use.sources[0])
    return ggml.build(f"ggml_{use.op}", "t" * len(use.sources), *use.sources)

"""BERT in float64 NumPy (Devlin et al. 2019, arXiv:1810.04805)."""

from collections.abc import Mapping, Sequence
from math import erf

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]


def in_double_precision(
    weights: Mapping[str, Doubles], ids: Sequence[int], heads: int, eps: float = 1e-5
) -> Doubles:
    """The states that BERT gives the tokens of one text."""
    layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blk."))

    def linear(x: Doubles, name: str) -> Doubles:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x: Doubles, name: str) -> Doubles:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    x = weights["token_embd.weight"][list(ids)] + weights["position_embd.weight"][: len(ids)]
    x = norm(x + weights["token_types.weight"][0], "token_embd_norm")
    for i in range(layers):
        q, k, v = (
            linear(x, f"blk.{i}.attn_{part}").reshape(len(ids), heads, -1).swapaxes(0, 1)
            for part in "qkv"
        )
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        y = (shares / shares.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(x.shape)
        x = norm(x + linear(y, f"blk.{i}.attn_output"), f"blk.{i}.attn_output_norm")
        y = linear(x, f"blk.{i}.ffn_up")
        y = y * (1 + np.vectorize(erf)(y / np.sqrt(2))) / 2
        x = norm(x + linear(y, f"blk.{i}.ffn_down"), f"blk.{i}.layer_output_norm")
    return x

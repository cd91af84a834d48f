"""Llama and its many descendants: pre-norm blocks, neighbouring pairs turn, SwiGLU."""

import tensorplug as tp
from tensorplug import Tensor
from tensorplug.gguf import GGUFFile
from tensorplug_llm.arch.common import (
    Architecture,
    Pass,
    attention,
    block_tensors,
    embed,
    gated,
    logits,
    norm,
)
from tensorplug_llm.hparams import HParams, read_hparams


def read(file: GGUFFile) -> HParams:
    """Hyper-parameters of a llama model."""
    return read_hparams(file, "llama", rope_mode="normal")


def forward(p: Pass) -> Tensor:
    """Pre-norm blocks with SwiGLU; head norms and biases where the file has them."""
    x = embed(p)
    for i in range(p.hparams.layers):
        x = tp.add(attention(p, i, norm(p, x, f"blk.{i}.attn_norm")), x)
        x = tp.add(gated(p, i, norm(p, x, f"blk.{i}.ffn_norm"), "swiglu"), x, name=f"blk.{i}.out")
    return logits(p, x)


LLAMA = Architecture("llama", read, block_tensors, forward)

"""Which type each tensor of a model is stored in.

Weights of two or more dimensions take the wanted type. What is small or delicate stays as it is:
norms and biases, the tables of positions and token types, routers of experts, the kernels of short
convolutions. So do blocks in a folder of Hugging Face: its makers chose them. Where the
length of a row is not a multiple of the block, the tensor takes a type with shorter blocks.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass

from tensorplug.device import OptionError
from tensorplug.dtypes import (
    F16,
    F32,
    F64,
    IQ1_M,
    IQ1_S,
    IQ2_S,
    IQ2_XS,
    IQ2_XXS,
    IQ3_S,
    IQ3_XXS,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    NVFP4,
    Q1_0,
    Q2_0,
    Q2_K,
    Q3_K,
    Q4_0,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    Q8_1,
    Q8_K,
    TQ1_0,
    TQ2_0,
    DType,
)
from tensorplug.gguf import FileTensor, GGUFFile, ModelFile
from tensorplug_cpu.encode import can_encode
from tensorplug_cpu.encoders import NEEDS_IMPORTANCE

SHORTER: dict[DType, DType] = {
    **dict.fromkeys(
        (Q2_K, Q3_K, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_XS), IQ4_NL
    ),
    **dict.fromkeys((TQ1_0, TQ2_0, Q1_0, Q2_0), Q4_0),
    NVFP4: MXFP4,
    Q4_K: Q5_0,
    Q5_K: Q5_1,
    Q6_K: Q8_0,
}
"""What rows of whole blocks of 32 are stored in where longer blocks do not fit."""

DELICATE = (
    "ffn_gate_inp",
    "position_embd",
    "token_types",
    "ssm_conv1d",
    "shortconv.conv",
    "time_mix_",
    "attn_rel_b",
)
"""Parts of names of weights that stay as they are."""

LOGITS, EMBEDDING = "output.weight", "token_embd.weight"


@dataclass(frozen=True, slots=True)
class Choice:
    """What becomes of one tensor, and why, where that is not what was asked for."""

    tensor: FileTensor
    dtype: DType
    note: str = ""

    @property
    def row_size(self) -> int:
        """Bytes of a row."""
        return self.dtype.row_size(self.tensor.ne[0])

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        rows = self.tensor.ne[1] * self.tensor.ne[2] * self.tensor.ne[3]
        return rows * self.row_size


def check_type(dtype: DType, *, importance: bool) -> None:
    """Raise OptionError where files cannot be stored in `dtype`."""
    if dtype in (Q8_1, Q8_K) or dtype is F64 or not can_encode(dtype, importance=True):
        raise OptionError(
            f"quantize: {dtype.name} is not a type for weights; try q4_K, q6_K or q8_0"
        )
    if dtype in NEEDS_IMPORTANCE and not importance:
        raise OptionError(
            f"quantize: {dtype.name} needs the importance of each column of weights; give "
            "--importance FILE"
        )


def choose(
    file: ModelFile,
    wanted: DType,
    *,
    known: Container[str],
    pure: bool = False,
    requantize: bool = False,
) -> Iterator[Choice]:
    """Yield a choice for each tensor; importance is `known` for some.

    `pure`: no better logits. `requantize`: blocks are encoded once more, also those of a folder.
    """
    keeps_blocks = not (requantize or isinstance(file, GGUFFile))
    logits = LOGITS if LOGITS in file.tensors else EMBEDDING
    for tensor in file.tensors.values():
        kept = _kept(tensor, blocks=keeps_blocks)
        if kept is not None:
            yield kept
            continue
        aim, why = wanted, ""
        if aim in NEEDS_IMPORTANCE and tensor.name not in known:
            aim, why = Q2_K, f"no importance known for {wanted.name}"
        if tensor.name == logits and not pure and _bits(aim) < _bits(Q6_K):
            aim, why = Q6_K, "makes the logits"
        yield _fitting(tensor, aim, why)


def _kept(tensor: FileTensor, *, blocks: bool) -> Choice | None:
    """The choice for a tensor that is not to be quantised, `blocks` included."""
    if blocks and tensor.dtype.is_block:
        return Choice(tensor, tensor.dtype, "stored so by its makers")
    if tensor.dtype.is_integer:
        return Choice(tensor, tensor.dtype, "integers")
    if all(size == 1 for size in tensor.ne[1:]):
        return Choice(tensor, tensor.dtype if tensor.dtype.is_block else F32)
    if not tensor.name.endswith("weight") or any(part in tensor.name for part in DELICATE):
        return Choice(tensor, tensor.dtype, "kept as it is")
    return None


def _fitting(tensor: FileTensor, aim: DType, why: str) -> Choice:
    """`aim`, or what rows of that length can be stored in."""
    row = tensor.ne[0]
    for dtype in (aim, SHORTER.get(aim, aim), F16):
        if row % dtype.block == 0:
            break
    if dtype is not aim:
        why = f"rows of {row} are not whole blocks of {aim.name}"
    return Choice(tensor, dtype, why)


def _bits(dtype: DType) -> float:
    return 8 * dtype.size / dtype.block

"""How the weights and caches of a model are cut for several devices that compute each layer."""

from collections.abc import Mapping, Sequence

from tensorplug import Backend, Tensor, meta
from tensorplug.device import Resource
from tensorplug.errors import OptionError
from tensorplug.gguf import FileTensor, ModelFile
from tensorplug.meta import Partition, Policy, cut, deal
from tensorplug_llm.hparams import HParams

CACHES = ("cache_k", "cache_v")
SUMMED = ("attn_output", "ffn_down", "ffn_down_exps", "ffn_down_shexp")
"""Matrices of which each device has some of the inputs: their results are added up."""
Segments = tuple[tuple[int, ...], ...]
"""For each tensor that a fused one consists of, the rows of each device."""


def tensor_policy(
    hparams: HParams, ratio: Sequence[float], tensors: Mapping[str, FileTensor]
) -> Policy:
    """The policy of a meta device for a model, in the proportions of `ratio`.

    Attention is cut by heads, a feed-forward block and each expert by inner rows, the output matrix
    by tokens of the vocabulary: each block needs one sum over the devices, the logits are gathered.
    Norms and routers are on every device. `tensors` are those of the file.
    """
    shares = _Shares(hparams, ratio, tensors)

    def policy(tensor: Tensor) -> Partition | None:
        return shares.state_of(tensor.name)

    return policy


class _Shares:
    def __init__(
        self, hparams: HParams, ratio: Sequence[float], tensors: Mapping[str, FileTensor]
    ) -> None:
        self._hp = hparams
        self._ratio = ratio
        self._tensors = tensors

    def state_of(self, name: str) -> Partition | None:
        """The state of a weight or a cache."""
        first, _, rest = name.partition(".")
        if first in CACHES:
            rows = self._attention(int(rest)).get("attn_" + first[-1])
            return cut(0, *rows) if rows else None
        if first in ("output", "token_embd"):
            axis = 0 if rest == "bias" else 1
            return cut(axis, deal(self._hp.vocabulary, self._ratio))
        if first != "blk":
            return None
        layer, _, rest = rest.partition(".")
        block, _, kind = rest.partition(".")
        sizes = {**self._attention(int(layer)), **self._feed_forward(int(layer))}.get(block)
        if not sizes:
            return None
        if block in SUMMED:
            # Their bias is added once, to the sum.
            return cut(0, *sizes) if kind == "weight" else None
        # One sink for each head is a vector; other weights have a row for each result.
        return cut(1 if kind == "weight" and block != "attn_sinks" else 0, *sizes)

    def _attention(self, layer: int) -> dict[str, Segments]:
        """Rows of each device; nothing where heads cannot be cut without cutting blocks.

        Recurrent layers, and queries with gates, are whole on every device.
        """
        hp, queries = self._hp, self._tensors.get(f"blk.{layer}.attn_q.weight")
        is_gated = queries is not None and queries.ne[1] != hp.heads * hp.key_length
        if layer not in hp.attention_layers or is_gated:
            return {}
        block = self._block(f"blk.{layer}.attn_output.weight")
        if hp.kv_heads == 1:
            # All heads share one of keys and values, which every device has.
            heads = self._units(hp.heads, hp.value_length, block)
            found = {"attn_q": hp.key_length, "attn_output": hp.value_length, "attn_sinks": 1}
        else:
            group = hp.heads // hp.kv_heads
            heads = self._units(hp.kv_heads, group * hp.value_length, block)
            found = {
                "attn_q": group * hp.key_length,
                "attn_k": hp.key_length,
                "attn_v": hp.value_length,
                "attn_output": group * hp.value_length,
                "attn_sinks": group,
            }
        rows: dict[str, Segments] = {
            name: (tuple(n * size for n in heads),) for name, size in found.items() if heads
        }
        if "attn_k" in rows:
            rows["attn_qkv"] = rows["attn_q"] + rows["attn_k"] + rows["attn_v"]
        elif f"blk.{layer}.attn_qkv.weight" in self._tensors:
            # Keys and values that all devices have are not cut, and neither is what holds them.
            return {}
        return rows

    def _feed_forward(self, layer: int) -> dict[str, Segments]:
        """Rows of each device, of the dense block, of each expert, and of the shared one."""
        found: dict[str, Segments] = {}
        for kind in ("", "_exps", "_shexp"):
            gate, up, down = (f"ffn_{name}{kind}" for name in ("gate", "up", "down"))
            last = self._tensors.get(f"blk.{layer}.{down}.weight")
            if last is None:
                continue
            rows = (deal(last.ne[0], self._ratio, unit=last.dtype.block),)
            is_fused = self._tensors[f"blk.{layer}.{up}.weight"].ne[1] == 2 * last.ne[0]
            found |= {gate: rows, up: rows * 2 if is_fused else rows, down: rows}
        return found

    def _units(self, count: int, size: int, block: int) -> tuple[int, ...]:
        """Deal out `count` things of `size` elements, as many together as fill whole blocks."""
        fitting = [n for n in range(1, count + 1) if count % n == 0 and n * size % block == 0]
        return deal(count, self._ratio, unit=fitting[0]) if fitting else ()

    def _block(self, name: str) -> int:
        return self._tensors[name].dtype.block


def joined(
    owned: list[Resource],
    given: Sequence[Backend],
    file: ModelFile,
    hparams: HParams,
    ratio: Sequence[float] | None,
) -> Backend:
    """One stream over the devices of `given`, each with the options and threads of its stream.

    Raises OptionError.
    """
    remote = [backend.name for backend in given if backend.device.remote]
    if remote:
        raise OptionError(
            "split: tensor needs sums over the devices in each layer, and each one is a message "
            f"to {' and '.join(remote)}: 244 messages for a token of a model with 30 layers, where "
            "layers need one for each device; leave --split out"
        )
    parts = ratio or [1.0] * len(given)
    if len(parts) != len(given):
        names = ", ".join(b.name for b in given)
        raise OptionError(
            f"ratio: {', '.join(map(str, parts))} has {len(parts)} parts for {names}; give one for "
            "each device"
        )
    device = meta.device(given, tensor_policy(hparams, parts, file.tensors))
    owned.append(device)
    joined = device.open()
    owned.append(joined)
    return joined

"""The meta device: several devices that act as one, for tensor parallelism.

from tensorplug import meta
from tensorplug.meta import cut, deal

def by_heads(tensor):
    return cut(1, deal(tensor.ne[1], (3, 1), unit=64)) if "attn_q" in tensor.name else None

with meta.device([first, second], by_heads) as both, both.open() as backend:
    ...
"""

from tensorplug.meta.device import MetaBackend, MetaDevice, device
from tensorplug.meta.explain import SplitTable
from tensorplug.meta.plan import MetaPlan
from tensorplug.meta.policy import POLICIES, Policy
from tensorplug.meta.state import SUMMANDS, WHOLE, Partition, cut, deal
from tensorplug.ops.split import MIRRORED, PARTIAL

__all__ = [
    "MIRRORED",
    "PARTIAL",
    "POLICIES",
    "SUMMANDS",
    "WHOLE",
    "MetaBackend",
    "MetaDevice",
    "MetaPlan",
    "Partition",
    "Policy",
    "SplitTable",
    "cut",
    "deal",
    "device",
]

"""Other looks at the same memory."""

from oracle.builders.table import Use, builds, direct
from oracle.ggml import Ggml, Refused

direct("transpose")


@builds("view")
def _view(ggml: Ggml, use: Use) -> int:
    x, node = use.seen[0], use.node
    assert x is not None
    if (x["ne"], x["nb"], use.params["offset"]) == (node["ne"], node["nb"], 0):
        return use.sources[0]  # another rank, which ggml does not have
    if node["ne"][0] > 1 and node["nb"][0] != node["unit"]:
        raise Refused("ggml_view_4d has no stride for dimension 0")
    return window(ggml, use.sources[0], node["ne"], node["nb"], use.params["offset"])


def window(ggml: Ggml, x: int, ne: tuple[int, ...], nb: tuple[int, ...], offset: int) -> int:
    """A view of `x` with these sizes and strides, from `offset` bytes on."""
    return ggml.build("ggml_view_4d", "tllllzzzz", x, *ne, *nb[1:], offset)


@builds("permute")
def _permute(ggml: Ggml, use: Use) -> int:
    return ggml.build("ggml_permute", "tiiii", *use.sources, *use.params["axes"])


@builds("reshape")
def _reshape(ggml: Ggml, use: Use) -> int:
    return ggml.build("ggml_reshape_4d", "tllll", *use.sources, *use.params["ne"])

"""`Bindings`: the places of the tensors of a graph."""

from collections.abc import Mapping

from tensorplug.errors import NotAllocated
from tensorplug.graph.tensor import Place, Tensor


class Bindings:
    """A table from tensors to places, for tensors that do not have a place of their own.

    A tensor that is in the table lies at the place named there. Otherwise a view or a write lies in
    the memory of its root, and a persistent tensor lies at its own place.

    >>> with tp.open("cpu") as cpu:
    ...     w = cpu.place("w", np.ones(4, np.float32))
    ...     tp.Bindings().where(w) == w.place
    True
    """

    __slots__ = ("_places",)

    def __init__(self, places: Mapping[Tensor, Place] | None = None) -> None:
        self._places = dict(places or {})

    def where(self, tensor: Tensor) -> Place:
        """The place (buffer and byte offset) of `tensor`. Raises NotAllocated if it has none."""
        here = self._places.get(tensor)
        if here is not None:
            return here
        root = tensor.root
        home = self._places.get(root) or root.place
        if home is None:
            raise NotAllocated(
                f"{tensor}: has no memory in these bindings; schedule its graph first"
            )
        if not tensor.view_offset:
            return home
        return Place(home.buffer, home.offset + tensor.view_offset)

    def has(self, tensor: Tensor) -> bool:
        """True if `tensor` has a place."""
        root = tensor.root
        return tensor in self._places or root in self._places or root.place is not None

    def names(self, tensor: Tensor) -> bool:
        """True if the table has an entry for `tensor` itself, whether it is a view or not."""
        return tensor in self._places

    def with_places(self, places: Mapping[Tensor, Place]) -> "Bindings":
        """Return a copy of these bindings in which the entries of `places` take precedence."""
        return Bindings({**self._places, **places})

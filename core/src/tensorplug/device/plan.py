"""`Plan`: a part that is prepared for a stream. `NodePlan`: the default plan."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, final

from tensorplug.device.lifetime import Resource, Turnstile
from tensorplug.device.part import Part
from tensorplug.device.rowids import wrong_id
from tensorplug.errors import GraphError, TensorplugError, blaming
from tensorplug.graph.tensor import Tensor
from tensorplug.ops.ids import row_ids

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorplug.device.backend import Backend
    from tensorplug.device.buffer import Buffer
    from tensorplug.fusion.formulas import Group


class Plan(Resource, ABC):
    """A part that is prepared for one stream: `run()` only queues it."""

    def __init__(self, backend: "Backend", bound: Part) -> None:
        super().__init__(backend)
        self.backend = backend
        self.bound = bound
        self._turn = Turnstile(f"plan on {backend.name}")
        self._bound_buffers: frozenset[Buffer] | None = None

    @final
    def run(self) -> None:
        """Queue the whole part. An asynchronous backend returns before the work is done.

        Raises Closed if the plan, or memory of one of its tensors, was closed.
        """
        with self._turn, self.backend._turn, blaming(self.backend.device):
            self.check_open()
            self._check_memory()
            for watch in self.backend.watches:
                watch.runs(self.backend, self.bound)
            try:
                self._run()
            except TensorplugError as error:
                error.node = error.node or self._only_work()
                raise
            except Exception as error:
                wrong = self._wrong_id()
                if wrong is None:
                    raise
                raise wrong from error

    def _wrong_id(self) -> GraphError | None:
        """The error for a wrong row id, if one may be the reason why a kernel failed.

        Ids that the part computes may have been overwritten since then.
        """
        nodes = (n for n in self.bound.nodes if not n.is_view)
        given = (n for n in nodes if all(held.ids.root.is_leaf for held in row_ids(n)))
        return wrong_id(given, self.bound.bindings)

    @final
    def rebind(self, bound: Part) -> None:
        """Use this plan for other places, or for another part with the same key. Raises GraphError.

        This is cheaper than a new plan: the device is not asked again, and a backend keeps compiled
        programs, kernel objects and captured graphs if it has any.
        """
        with self._turn, blaming(self.backend.device):
            self.check_open()
            if not bound.has_structure_of(self.bound):
                raise GraphError(
                    f"{self!r}: cannot run {bound!r}, which has another structure; plan it"
                )
            self.bound = bound
            self._bound_buffers = None
            self._rebind()

    def _check_memory(self) -> None:
        if self._bound_buffers is None:
            where = self.bound.bindings
            tensors = (*self.bound.leafs, *self.bound.nodes)
            self._bound_buffers = frozenset(where.where(t).buffer for t in tensors if where.has(t))
        for buffer in self._bound_buffers:
            buffer.check_open()

    @abstractmethod
    def _run(self) -> None:
        """Queue the work. The values of leafs, also of weights and ids, can change between runs.

        A TensorplugError should have the text of the current node in `error.node`, for reports.
        `NodePlan` sets it. The plan of a single node need not set it.
        """

    @abstractmethod
    def _rebind(self) -> None:
        """Resolve addresses again, after `self.bound` has changed."""

    def _only_work(self) -> str:
        """The text of the only node or group of the part; empty if there are several."""
        work = self.bound.work
        return str(work[0]) if len(work) == 1 else ""

    def _finish(self) -> None:
        self.backend.drain()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.bound.nodes)} nodes"
        return f"<{type(self).__name__} {self.backend.name}, {state}>"


class NodePlan(Plan):
    """The default plan: a loop that calls the backend for each node and group."""

    def _run(self) -> None:
        bindings = self.bound.bindings
        work: Tensor | Group | None = None
        try:
            for work in self._order():
                if isinstance(work, Tensor):
                    self.backend._compute(work, bindings)
                else:
                    self.backend._compute_group(work, bindings)
        except TensorplugError as error:
            error.node = error.node or str(work)
            raise
        except Exception as error:
            nodes = (work,) if isinstance(work, Tensor) else ()
            wrong = wrong_id(nodes, bindings)
            if wrong is None:
                raise
            raise wrong from error

    def _order(self) -> "Iterable[Tensor | Group]":
        """The nodes and groups in the order in which they are queued."""
        return self.bound.work

    def _rebind(self) -> None:
        """Do nothing: addresses are looked up in each run."""

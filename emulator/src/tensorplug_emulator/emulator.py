"""`Emulator`: launches of lowered programs, run on the processor with all accesses checked."""

from collections.abc import Iterable, Mapping

import numpy as np

from tensorplug_emulator.library import CUDA_LANGUAGE, Language, Library, Memory, Order, head
from tensorplug_emulator.packing import Piece, pieces
from tensorplug_simt.dialects.dialect import CUDA, Dialect
from tensorplug_simt.program import Launch

TOGETHER = 128
"""Kernels that are compiled as one text."""


class Emulator:
    """Compiled kernels of one dialect, and the order in which their items run.

    Races in buffers are errors where they are `watched`.
    """

    def __init__(
        self,
        *,
        dialect: Dialect = CUDA,
        language: Language = CUDA_LANGUAGE,
        order: Order = Order.FORWARD,
        seed: int = 0,
        watched: bool = True,
    ) -> None:
        self.watched = watched
        self.order = order
        self.seed = seed
        self.dialect = dialect
        self._language = language
        self._known: dict[tuple[object, ...], tuple[Library, str]] = {}

    def prepare(self, launches: Iterable[Launch]) -> None:
        """Compile what is not compiled yet, many kernels at once: far quicker than one by one.

        Raises Unsupported without a compiler, DeviceError with its messages.
        """
        new = [launch for launch in launches if launch.variant not in self._known]
        found = pieces(new, self.dialect)
        for start in range(0, len(found), TOGETHER):
            part = found[start : start + TOGETHER]
            texts = "".join(_exported(piece, self._language) for piece in part)
            library = Library(head(self._language) + texts)
            for piece in part:
                self._known[piece.launch.variant] = (library, piece.name)

    def run(self, launch: Launch, places: Mapping[str, tuple[int, int]]) -> None:
        """Run a launch; `places` are the address of each buffer and the bytes to the region in it.

        It may read just the bytes of its regions and write those of `writes`. Raises DeviceError.
        """
        self.prepare([launch])
        library, name = self._known[launch.variant]
        memory = [_memory(launch, buffer, sum(places[buffer])) for buffer in launch.regions]
        pointers = [np.uint64(places[buffer][0]).tobytes() for buffer in launch.regions]
        parameters = launch.parameters({name: offset for name, (_, offset) in places.items()})
        block = parameters.tobytes()
        if self._language.block_in_memory:
            address = int(parameters.ctypes.data)
            memory.append(Memory("of parameters", address, parameters.nbytes, writable=False))
            block = np.uint64(address).tobytes()
        library.launch(
            name,
            launch.groups,
            launch.local,
            [*pointers, block],
            memory,
            order=self.order,
            seed=self.seed,
            watched=self.watched,
        )


def _memory(launch: Launch, name: str, first: int) -> Memory:
    """What a launch may reach of the buffer `name`, whose first element is at `first`."""
    low, high = launch.regions[name].bounds
    return Memory(name, first + low, high - low, name in launch.kernel.writes)


def _exported(piece: Piece, language: Language) -> str:
    """A piece whose local memory has a section of its own, and what the library calls it by."""
    section = f"local_{piece.name}"
    text = language.prepared(piece.text)
    export = language.exported(piece.text, piece.name, section)
    known = f"namespace in_{piece.name} {{ {export} }}\n"
    return f"#define SIMT_SECTION {section}\n{text}{known}#undef SIMT_SECTION\n"

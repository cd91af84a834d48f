"""Takes a GGUF file apart, changes some of its parts so that each stays readable, and writes it."""

import struct
from dataclasses import dataclass, replace
from random import Random

SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9
BITS = {0: 8, 1: 8, 2: 16, 3: 16, 4: 32, 5: 32, 10: 64, 11: 64}
NUMBERS = (0, 1, 2, 3, 5, 7, 8, 31, 32, 33, 255, 272, 1024, 65535, 2**20, 2**31, 2**32, 2**63)
FLOATS = (0.0, -0.0, 1e-45, 1e-5, 1.0, -1.0, 1e4, 3e38, float("inf"), -float("inf"), float("nan"))
TEXTS = (
    *(b"", b" ", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"h e", b"he", b"<0x41>", b"llama", b"gpt2"),
    *(b"a" * 70_000, "\u2581".encode(), b"none", b"yarn", b"{{ messages }}", b"{% for"),
    *(b"{{ messages[0].content[99] ~ 1 / 0 }}", b"{{ raise_exception('\x1b[2J') }}", b"qwen2"),
    *(b"{{ ''.__class__.__mro__[1].__subclasses__() }}", b"gemma3", b"{{ bos_token ~ eos_token }}"),
)


@dataclass(frozen=True)
class Entry:
    """A metadata entry: `kind` as in the format, `count` of an array's elements, bytes behind."""

    key: bytes
    kind: int
    data: bytes
    element: int = -1
    count: int = 0

    def write(self) -> bytes:
        head = struct.pack("<Q", len(self.key)) + self.key + struct.pack("<I", self.kind)
        if self.kind == ARRAY:
            head += struct.pack("<IQ", self.element, self.count)
        return head + self.data


@dataclass(frozen=True)
class Info:
    """The record of a tensor."""

    name: bytes
    ne: tuple[int, ...]
    kind: int
    offset: int

    def write(self) -> bytes:
        sizes = struct.pack(f"<{len(self.ne)}Q", *(n % 2**64 for n in self.ne))
        name = struct.pack("<Q", len(self.name)) + self.name + struct.pack("<I", len(self.ne))
        return name + sizes + struct.pack("<IQ", self.kind % 2**32, self.offset % 2**64)


@dataclass(frozen=True)
class Model:
    """A whole file in parts."""

    entries: tuple[Entry, ...]
    infos: tuple[Info, ...]
    data: bytes

    def write(self) -> bytes:
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.infos), len(self.entries))
        head += b"".join(part.write() for part in (*self.entries, *self.infos))
        return head + bytes(-len(head) % 32) + self.data


class Reader:
    """Reads a file that is known to be good."""

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = raw, 24

    def number(self, code: str) -> int:
        (value,) = struct.unpack_from("<" + code, self.raw, self.at)
        self.at += struct.calcsize("<" + code)
        return int(value)

    def take(self, size: int) -> bytes:
        self.at += size
        return self.raw[self.at - size : self.at]

    def entry(self) -> Entry:
        key, kind = self.take(self.number("Q")), self.number("I")
        if kind != ARRAY:
            return Entry(key, kind, self.values(kind, 1))
        element, count = self.number("I"), self.number("Q")
        return Entry(key, kind, self.values(element, count), element, count)

    def values(self, kind: int, count: int) -> bytes:
        start = self.at
        for _ in range(count):
            self.take(self.number("Q") if kind == STRING else struct.calcsize(SCALARS[kind]))
        return self.raw[start : self.at]

    def info(self) -> Info:
        name, rank = self.take(self.number("Q")), self.number("I")
        ne = tuple(self.number("Q") for _ in range(rank))
        return Info(name, ne, self.number("I"), self.number("Q"))


def parse(raw: bytes) -> Model:
    """The parts of a good file."""
    tensors, entries = struct.unpack_from("<QQ", raw, 8)
    reader = Reader(raw)
    found = tuple(reader.entry() for _ in range(entries))
    infos = tuple(reader.info() for _ in range(tensors))
    return Model(found, infos, raw[reader.at + -reader.at % 32 :])


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def scalar(rng: Random, kind: int) -> bytes:
    """A value of a kind of numbers."""
    if kind == 7:
        return rng.choice((b"\0", b"\1", b"\2"))
    if kind in BITS:
        number = rng.choice((*NUMBERS, rng.randrange(300), -1))
        return (number % 2 ** BITS[kind]).to_bytes(BITS[kind] // 8, "little")
    return struct.pack("<" + SCALARS[kind], rng.choice(FLOATS))


def other_value(rng: Random, entry: Entry) -> Entry:
    """The same key with another value, usually of the same kind."""
    kind = entry.kind if rng.random() < 0.6 else rng.choice((*SCALARS, STRING, ARRAY))
    if kind == STRING:
        return Entry(entry.key, kind, text(rng.choice(TEXTS)))
    if kind != ARRAY:
        return Entry(entry.key, kind, scalar(rng, kind))
    if entry.kind == ARRAY:
        return other_array(rng, entry)
    return other_array(rng, Entry(entry.key, kind, b"", rng.choice((*SCALARS, STRING))))


def other_array(rng: Random, entry: Entry) -> Entry:
    """Another number of elements, one other element, or a lie about their number."""
    if entry.element == STRING:
        values = [text(rng.choice(TEXTS)) for _ in range(rng.randrange(6))]
    else:
        values = [scalar(rng, entry.element) for _ in range(rng.choice((0, 1, 2, 258, 300)))]
    if entry.data and values and rng.random() < 0.5:  # in place of one that was there
        reader = Reader(entry.data)
        reader.at = 0
        old = []
        while reader.at < len(entry.data):  # its count may be a lie of an earlier change
            old.append(reader.values(entry.element, 1))
        old[rng.randrange(len(old))] = values[0]
        values = old
    lie = rng.choice((1, -1, 2**40)) if rng.random() < 0.05 else 0
    return replace(entry, data=b"".join(values), count=max(len(values) + lie, 0))


def other_info(rng: Random, info: Info, names: list[bytes]) -> Info:
    """One lie about a tensor."""
    change = rng.randrange(5)
    if change == 0:
        ne = list(info.ne)
        ne[rng.randrange(len(ne))] = rng.choice((*NUMBERS, -1, 48, 64))
        return replace(info, ne=tuple(ne))
    if change == 1:
        return replace(info, ne=rng.choice((info.ne[::-1], (*info.ne, 1), info.ne[:1], ())))
    if change == 2:
        return replace(info, kind=rng.choice((*range(45), 2**31)))
    if change == 3:
        return replace(info, offset=info.offset + rng.choice((-32, 32, 1, 2**40, -(2**60))))
    return replace(info, name=rng.choice((*names, *TEXTS[:8], b"blk.0.attn_q.bias", b"rope_freqs")))


def mutated(rng: Random, model: Model) -> bytes:
    """The file with one to four changes."""
    entries, infos, data = list(model.entries), list(model.infos), bytearray(model.data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        change = rng.randrange(10)
        place = rng.randrange(len(entries)) if entries else 0
        which = rng.randrange(len(infos)) if infos else 0
        if change < 5 and entries:
            entries[place] = other_value(rng, entries[place])
        elif change == 5 and entries:
            entries[place : place + 1] = rng.choice(([], [entries[place]] * 2))
        elif change == 6 and entries:
            entries[place] = replace(rng.choice(entries), key=entries[place].key)
        elif change == 7 and infos:
            infos[which : which + 1] = rng.choice(([], [infos[which]] * 2))
        elif change == 8:
            at = rng.randrange(0, len(data) - 64, 4)
            data[at : at + 64] = struct.pack("<f", rng.choice(FLOATS)) * 16
        elif infos:
            infos[which] = other_info(rng, infos[which], [info.name for info in infos])
    raw = Model(tuple(entries), tuple(infos), bytes(data)).write()
    return raw[: rng.randrange(len(raw))] if rng.random() < 0.03 else raw

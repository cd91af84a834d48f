"""What only Apple's compiler would refuse in a text of Metal Shading Language, found without it.

Rules over text whose macros are expanded (`emulator.metal.expanded`); no parser, and no promise
that what passes compiles. Source: Metal Shading Language Specification, sections 1.5, 2, 4 and 5.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tensorplug_emulator.msl import heads
from tensorplug_emulator.msl_words import ATTRIBUTES, FORBIDDEN, KEYWORDS, METALS, SIZES, SPACES
from tensorplug_simt.dialects.metal import MOST_BUFFERS, MOST_LOCAL

OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}
"""What lengths of arrays are made with."""

_OWN_TYPES = re.compile(r"\}\s*(\w+)\s*;|\bstruct\s+(\w+)|\b(?:typename|class)\s+(\w+)")
_FUNCTION = re.compile(r"\b(kernel\s+)?[\w:<>&*]+[\s&*]+(\w+)\s*\(([^;{}]*)\)\s*\{")
_ARRAY = re.compile(r"\bthreadgroup\s+(?:const\s+)?(\w+)\s+(\w+)\s*((?:\[[^\]]*\]\s*)+)(=?)")
_POINTER_TO_FUNCTION = re.compile(r"\(\s*\*\s*\w+\s*\)\s*\(")
_VECTOR = re.compile(r"([a-z]+)([234])$")


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a text: its name, whether it is a kernel, what stands between its braces."""

    name: str
    is_kernel: bool
    body: str


def problems(text: str) -> list[str]:
    """What is wrong with a text whose macros are expanded; empty where nothing is known to be."""
    return [line for rule in RULES for line in rule(text)]


def functions(text: str) -> list[Function]:
    """The functions that a text defines."""
    found = []
    for match in _FUNCTION.finditer(text):
        if match[2] not in {"if", "for", "while", "switch"} and not _depth(text[: match.start()]):
            end = _closing(text, match.end())
            found.append(Function(match[2], bool(match[1]), text[match.end() : end]))
    return found


def local_bytes(text: str) -> int:
    """Bytes of a text's arrays of groups. Raises ValueError for unknown sizes."""
    total = 0
    for kind, name, lengths, _ in _ARRAY.findall(text):
        count = 1
        for length in re.findall(r"\[([^\]]*)\]", lengths):
            count *= _number(length, f"threadgroup array {name}")
        total += _size(kind, name) * count
    return total


def _depth(text: str) -> int:
    """How many braces are open at the end; those of namespaces do not count."""
    return text.count("{") - text.count("}") - len(re.findall(r"\bnamespace\s+\w+\s*\{", text))


def _closing(text: str, start: int) -> int:
    """Where the brace closes that opens before `start`."""
    depth = 1
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if not depth:
            return at
    return len(text)


def _number(expression: str, what: str) -> int:
    """The value of a length, which is made of plain numbers by now."""
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, KeyError, ValueError) as error:
        raise ValueError(f"{what}: its length {expression!r} is not a number") from error


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left, operation, right):
            return OPERATIONS[type(operation)](_value(left), _value(right))
    raise ValueError("neither a number nor an operation")


def _size(kind: str, name: str) -> int:
    vector = _VECTOR.fullmatch(kind)
    if vector and vector[1] in SIZES:
        return SIZES[vector[1]] * {"2": 2, "3": 4, "4": 4}[vector[2]]
    if kind not in SIZES:
        raise ValueError(f"threadgroup array {name}: the size of {kind} is not known")
    return SIZES[kind]


# --- rules ----------------------------------------------------------------------------------


def _words(text: str) -> Iterator[str]:
    for word, why in FORBIDDEN.items():
        if re.search(rf"\b{word}\b", text):
            yield f"{word}: {why}"
    if re.search(r"\blong\s+long\b", text):
        yield "long long: 64 bits are a long"
    if _POINTER_TO_FUNCTION.search(text):
        yield "there are no pointers to functions"


def _pointers(text: str) -> Iterator[str]:
    """Every pointer and every reference says where it points."""
    own = {name for names in _OWN_TYPES.findall(text) for name in names if name}
    plain = "|".join(map(re.escape, sorted({*SIZES, *own, "void", "auto"})))
    pointer = re.compile(rf"\b(?:{plain})(?:[234])?\s*(?:\*|&(?!&))\s*(\w*)")
    for match in pointer.finditer(text):
        before = re.split(r"[(),;{}<=]", text[: match.start()])[-1]
        is_declared = re.fullmatch(r"[\w\s:]*", before) and not re.search(r"\breturn\b", before)
        if is_declared and not re.search(rf"\b(?:{'|'.join(SPACES)})\b", before):
            declared = " ".join((before + match[0]).split())
            yield f"{declared}: no address space"


def _names(text: str) -> Iterator[str]:
    plain = "|".join(SIZES)
    for name in re.findall(rf"\b(?:{plain})[234]?\s+(\w+)\s*[=;,)\[]", text):
        if name in KEYWORDS or (name in SIZES and name != "int" and name != "long"):
            yield f"{name}: a word of the language is used as a name"


def _functions(text: str) -> Iterator[str]:
    for function in functions(text):
        if function.name in METALS or function.name.startswith(("simd_", "quad_", "atomic_fetch_")):
            yield f"{function.name}: a function of Metal's has this name"


def _calls(text: str) -> Iterator[str]:
    """No function comes back to itself."""
    found = functions(text)
    calls: dict[str, set[str]] = {}
    for function in found:
        called = set(re.findall(r"\b(\w+)\s*\(", function.body))
        calls.setdefault(function.name, set()).update(called & {each.name for each in found})
    for name in calls:
        reached: set[str] = set()
        waiting = list(calls[name])
        while waiting:
            each = waiting.pop()
            if each not in reached:
                reached.add(each)
                waiting.extend(calls[each])
        if name in reached:
            yield f"{name}: calls itself"


def _kernels(text: str) -> Iterator[str]:
    try:
        found = heads(text)
    except ValueError as error:
        yield str(error)
        return
    if not found:
        yield "the text has no kernel"
    for head in found:
        places = [each.place for each in head.parameters if each.attribute == "buffer"]
        if len(set(places)) < len(places):
            yield f"kernel {head.name}: two buffers have one place"
        if any(not 0 <= place < MOST_BUFFERS for place in places):
            yield f"kernel {head.name}: buffers beyond the {MOST_BUFFERS} places there are"
        for each in head.parameters:
            if each.attribute not in ATTRIBUTES:
                yield f"kernel {head.name}: {each.name} has the unknown attribute {each.attribute}"


def _local(text: str) -> Iterator[str]:
    """Threadgroup arrays: only in kernels, without first values, within the memory of a group."""
    try:
        total = local_bytes(text)
        if total > MOST_LOCAL:
            yield f"{total} bytes of threadgroup memory, at most {MOST_LOCAL}"
    except ValueError as error:
        yield str(error)
    for function in functions(text):
        for _, name, _, value in _ARRAY.findall(function.body):
            if not function.is_kernel:
                yield f"threadgroup array {name}: {function.name} is not a kernel"
            if value:
                yield f"threadgroup array {name}: it must not have a first value"


def _globals(text: str) -> Iterator[str]:
    """What all functions see is constant; functions keep nothing from call to call."""
    for function in functions(text):
        if re.search(r"\bstatic\b(?!_)", function.body):
            yield f"{function.name}: a static variable"
    declared = re.compile(r"\b(\w+)\s+(\w+)\s*(?:\[[^\]]*\]\s*)*=\s*")
    for match in declared.finditer(text):
        before = re.split(r"[;}]", text[: match.start()])[-1]
        constant = "constant" in before or match[1] == "constant" or "(" in before
        if not constant and not _depth(text[: match.start()]):
            yield f"{match[2]}: a variable of the program that is not constant"


RULES: tuple[Callable[[str], Iterator[str]], ...] = (
    _words,
    _pointers,
    _names,
    _functions,
    _calls,
    _kernels,
    _local,
    _globals,
)

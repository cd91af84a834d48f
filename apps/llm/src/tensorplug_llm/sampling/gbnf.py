"""Grammars in GBNF of llama.cpp, in the words of llguidance."""

import re

_TOKEN = re.compile(
    r"""
    (?P<skipped> \s+ | \#.* )
    | (?P<literal> "(?: \\. | [^"\\] )*" )
    | (?P<set> \[ (?: \\. | [^\]\\] )* \] )
    | (?P<repeat> [*+?] | \{ \s*\d+\s* (?: ,\s*\d*\s* )? \} )
    | (?P<definition> [\w-]+ \s* ::= )
    | (?P<rule> [\w-]+ )
    | (?P<sign> [.|()] )
    """,
    re.VERBOSE,
)
_CHARACTER = re.compile(
    r"\\x(?P<x>[0-9a-fA-F]{2}) | \\u(?P<u>[0-9a-fA-F]{4}) | \\U(?P<U>[0-9a-fA-F]{8})"
    r"| \\(?P<control>[nrt]) | \\(?P<escaped>[^\w\s]) | (?P<plain>[^\\])",
    re.VERBOSE | re.DOTALL,
)
_CONTROL = {"n": "\n", "r": "\r", "t": "\t"}
_ANY = "/(?s:.)/"
_NOTHING = '""'


def is_gbnf(text: str) -> bool:
    """Whether a grammar is in GBNF, and not in Lark."""
    return re.search(r"^[ \t]*[\w-]+[ \t]*::=", text, re.MULTILINE) is not None


def lark_of_gbnf(text: str) -> str:
    """A grammar in GBNF as llguidance's Lark. Raises ValueError with the line.

    Rules without recursion become regular expressions, so that a grammar without recursion is
    followed exactly. Where it has some, each of these rules takes the longest text that it can.
    """
    rules = _Reader(text).rules
    if "root" not in rules:
        raise ValueError("there is no rule 'root', with which a text starts")
    regular = _without_recursion(rules)
    symbols = {name: f"{'T' if name in regular else 'r'}{i}" for i, name in enumerate(rules)}
    lines = [f"start: {symbols['root']}"]
    for name, parts in rules.items():
        written = (symbols[part] if isinstance(part, _Name) else part for part in parts)
        lines.append(f"{symbols[name]}: {' '.join(written)}")
    return "\n".join(lines)


class _Name(str):
    """Name of a rule among the parts of another."""

    __slots__ = ()


class _Reader:
    """Reads the rules: each is a list of parts in Lark and of names of rules."""

    def __init__(self, text: str) -> None:
        self.rules: dict[str, list[str]] = {}
        self._text = text
        self._at = 0
        self._open: list[int] = []
        """Where the open parentheses are among the parts of the rule."""
        self._item: int | None = None
        """Where the part starts that an operator would repeat."""
        used: dict[str, int] = {}
        while self._at < len(text):
            token = _TOKEN.match(text, self._at)
            if token is None:
                raise self._fail(f"{text[self._at : self._at + 20]!r} is not GBNF")
            kind, written = token.lastgroup, token[0]
            if kind == "definition":
                self._end()
                self._begin(written.removesuffix("::=").rstrip())
            elif kind != "skipped":
                if not self.rules:
                    raise self._fail("a rule starts with its name and ::=")
                if kind == "rule":
                    used.setdefault(written, self._at)
                self._take(kind or "", written)
            self._at = token.end()
        self._end()
        for name, self._at in used.items():
            if name not in self.rules:
                raise self._fail(f"there is no rule {name!r}")

    def _begin(self, name: str) -> None:
        if name in self.rules:
            raise self._fail(f"rule {name!r} is there twice")
        self._parts = self.rules[name] = []

    def _end(self) -> None:
        if self._open:
            raise self._fail("a parenthesis is open at the end of a rule")
        if self.rules:
            self._end_alternative()

    def _end_alternative(self) -> None:
        if not self._parts or self._parts[-1] in ("(", "|"):
            self._parts.append(_NOTHING)
        self._item = None

    def _take(self, kind: str, written: str) -> None:
        """Add a token to the rule."""
        if kind == "repeat":
            self._repeat("".join(written.split()))
        elif written in ("|", ")"):
            self._end_alternative()
            if written == ")":
                if not self._open:
                    raise self._fail("a parenthesis is closed that is not open")
                self._item = self._open.pop()
            self._parts.append(written)
        elif written == "(":
            self._open.append(len(self._parts))
            self._parts.append(written)
            self._item = None
        else:
            self._item = len(self._parts)
            self._parts.append(self._part(kind, written))

    def _part(self, kind: str, written: str) -> str:
        if kind == "rule":
            return _Name(written)
        if kind == "literal":
            return self._literal(written[1:-1])
        if kind == "set":
            return self._set(written[1:-1])
        return _ANY

    def _repeat(self, times: str) -> None:
        if self._item is None:
            raise self._fail(f"there is nothing before {times} to repeat")
        if times in ("{0}", "{0,0}"):
            self._parts[self._item :] = [_NOTHING]
        else:
            self._parts.append(times)
        self._item = None

    def _literal(self, written: str) -> str:
        """One part for each character, of which another rule may have the first ones too."""
        codes = [f"/{_code(character)}/" for character, _ in self._characters(written)]
        return f"({' '.join(codes)})" if codes else _NOTHING

    def _set(self, written: str) -> str:
        inverted = written.startswith("^")
        characters = self._characters(written[inverted:])
        if not characters:
            if inverted:
                return _ANY
            raise self._fail("[] allows no character")
        ranges, at = "", 0
        while at < len(characters):
            first = last = characters[at][0]
            at += 1
            if at + 1 < len(characters) and characters[at] == ("-", False):
                last = characters[at + 1][0]
                at += 2
            if last < first:
                raise self._fail(f"the range {first}-{last} runs backwards")
            ranges += f"{_code(first)}-{_code(last)}"
        return f"/[{'^' * inverted}{ranges}]/"

    def _characters(self, written: str) -> list[tuple[str, bool]]:
        """The characters of a literal or set, and whether each was escaped."""
        found, at = [], 0
        while at < len(written):
            match = _CHARACTER.match(written, at)
            if match is None:
                raise self._fail(f"{written[at : at + 10]!r} starts with an unknown escape")
            group, text = match.lastgroup or "", match[match.lastgroup or 0]
            if group in ("x", "u", "U"):
                code = int(text, 16)
                if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                    raise self._fail(f"there is no character {match[0]}")
                text = chr(code)
            found.append((_CONTROL[text] if group == "control" else text, group != "plain"))
            at = match.end()
        return found

    def _fail(self, problem: str) -> ValueError:
        line = self._text.count("\n", 0, self._at) + 1
        return ValueError(f"line {line}: {problem}")


def _code(character: str) -> str:
    """A character in a regular expression."""
    return f"\\x{{{ord(character):x}}}"


def _without_recursion(rules: dict[str, list[str]]) -> set[str]:
    """Rules that reach no rule that reaches itself."""
    waiting = {
        name: {part for part in parts if isinstance(part, _Name)} for name, parts in rules.items()
    }
    done = set[str]()
    while ready := [name for name, needed in waiting.items() if needed <= done]:
        done.update(ready)
        for name in ready:
            del waiting[name]
    return done

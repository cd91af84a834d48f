"""The map of README.md, "Find a kernel", is that of the code.

`python simt/tests/test_map_of_kernels.py` writes it again.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

from tensorplug import Tensor
from tensorplug_simt import families
from tensorplug_simt.facts import Facts
from tensorplug_simt.lowering import lower
from tensorplug_simt.program import Kernel, Program
from tensorplug_simt.table import PORTABLE, Kernels
from tensorplug_testing.cases import build
from tensorplug_testing.tiers import select

BACKENDS = ("opencl", "cuda", "metal")
README = Path(__file__).parents[1] / "README.md"
TEXTS = Path(families.__file__).parents[1] / "kernels"
FIRST, LAST = "<!-- map of kernels -->\n", "<!-- end of the map -->\n"


def mapped() -> str:
    """The map as Markdown: families with their ops, the sections of texts that they launch, and of
    each backend with kernels of its own for some of the ops the files that choose them, with the
    texts that these choose from."""
    ops, kernels = defaultdict(set), defaultdict(set)
    for op, lowering in PORTABLE.ops.items():
        ops[lowering.__module__].add(op)
    for module in ops:  # kernels that only other cases launch than those of the smoke tier
        kernels[module] |= {v for v in vars(sys.modules[module]).values() if isinstance(v, Kernel)}
    for node in (build(case).node for case in select("smoke", ops=sorted(PORTABLE.ops))):
        for wide in (False, True):
            kernels[PORTABLE.ops[node.op].__module__] |= launched(node, Facts(wide=wide))
    lines = [
        "| ops | `families/` | `kernels/`: sections | own kernels |\n",
        "|---|---|---|---|\n",
    ]
    for module in sorted(ops):
        family = module.rpartition(".")[2]
        texts = "; ".join(sections(kernels[module]))
        own = "; ".join(filter(None, (own_files(name, ops[module]) for name in BACKENDS)))
        lines.append(f"| {', '.join(sorted(ops[module]))} | `{family}.py` | {texts} | {own} |\n")
    return "".join(lines)


def own_files(backend: str, ops: Iterable[str]) -> str:
    """Links to the files of a backend that choose kernels for some of `ops`, and to their texts."""
    package = import_module(f"tensorplug_{backend}.kernels")
    kernels: Kernels = package.KERNELS
    modules = sorted({kernels.own[op].__module__ for op in ops if op in kernels.own})
    folder = f"../plugins/{backend}/src/tensorplug_{backend}/kernels"
    if not modules:
        return ""
    files = [f"{name.rpartition('.')[2]}.py" for name in modules]
    texts = {text for name in modules for text in texts_of(name, package.__name__, set())}
    links = (f"[{name}]({folder}/{name})" for name in (*files, *sorted(texts)))
    return f"{backend}: {', '.join(links)}"


def texts_of(module: str, package: str, seen: set[str]) -> set[str]:
    """The names of a backend's texts that a module, or one that it takes something from, has."""
    seen.add(module)
    found = set()
    for value in vars(sys.modules[module]).values():
        texts = (value.text, *value.parts) if isinstance(value, Kernel) else (value,)
        for text in texts:
            if isinstance(text, str) and text.startswith(f"{package.partition('.')[0]}:kernels/"):
                found.add(Path(text).name)
        source = getattr(value, "__module__", None) or getattr(value, "__name__", "")
        if str(source).startswith(f"{package}.") and source not in seen:
            found |= texts_of(source, package, seen)
    return found


def launched(node: Tensor, facts: Facts) -> set[Kernel]:
    program = lower(node, facts)
    return {each.kernel for each in program.launches} if isinstance(program, Program) else set()


def sections(kernels: Iterable[Kernel]) -> Iterator[str]:
    """The sections by text, in the text's order: `sort.k: sort_part, merge_parts`."""
    named = defaultdict(set)
    for kernel in kernels:
        named[Path(kernel.file).name].add(kernel.name)
    for text, names in sorted(named.items()):
        begins = (TEXTS / text).read_text(encoding="utf-8").index
        ordered = sorted(names, key=lambda name: begins(f"//: {name}\n"))
        yield f"`{text}`: {', '.join(ordered)}"


def test_map_of_kernels_is_that_of_the_code() -> None:
    text = README.read_text(encoding="utf-8")

    assert text.partition(FIRST)[2].partition(LAST)[0] == mapped(), f"run python {__file__}"


if __name__ == "__main__":
    before, _, rest = README.read_text(encoding="utf-8").partition(FIRST)
    after = rest.partition(LAST)[2]
    README.write_text(f"{before}{FIRST}{mapped()}{LAST}{after}", encoding="utf-8")

"""Steps of the site's build: pages from other folders, pages made from code, links to files.

Pages of `docs/` are plain Markdown and link to files anywhere in the checkout. On the site, pages
of other folders stand under their own paths, and other linked files are copied to `files/`.
"""

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of other folders that the navigation names, and the pages made from code."""
    for path in _paths(config["nav"]):
        if files.get_file_from_path(path) is None and (ROOT / path).is_file():
            text = (ROOT / path).read_text(encoding="utf-8")
            files.append(File.generated(config, path, content=text))
    pages = {
        "reference/api.md": _api(),
        "reference/functions.md": _functions(),
        "reference/commands.md": _commands(),
        "reference/errors.md": _errors(),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    for path in sorted(_linked(files)):
        files.append(File.generated(config, f"files/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Files, **_: Any) -> str:
    """Let links to files of the checkout lead to their places on the site."""
    here = _source(page.file.src_uri)
    if here.startswith("examples/"):
        markdown = _with_programs(markdown, ROOT / posixpath.dirname(here))

    def lead(link: re.Match[str]) -> str:
        before, target, anchor, after = link[1], link[2], link[3] or "", link[4]
        place = _place(posixpath.normpath(posixpath.join(posixpath.dirname(here), target)), files)
        if place is None:
            return link[0]
        relative = posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".")
        return f"{before}{relative}{anchor}{after}"

    return LINK.sub(lead, markdown)


COMMAND = re.compile(r"^```console\npython (\S+)", re.MULTILINE)
ROW = re.compile(r"^\| `(\w+\.\w+)` \|", re.MULTILINE)


def _with_programs(markdown: str, folder: Path) -> str:
    """A page of examples with the text of each program.

    It stands before the command that runs it, or at the end of a page that lists files in a table.
    """

    def text(path: Path) -> str:
        language = {".py": "python", ".sh": "sh"}.get(path.suffix, "c")
        program = path.read_text(encoding="utf-8")
        return f'```{language} title="{path.relative_to(folder)}"\n{program}```\n\n'

    def shown(command: re.Match[str]) -> str:
        program = folder / command[1]
        if program.parent == folder:
            return text(program) + command[0]
        parts = sorted(path for path in program.parent.rglob("*") if path.suffix in (".py", ".k"))
        return "".join(map(text, parts)) + command[0]

    listed = "".join(f"\n## {name}\n\n{text(folder / name)}" for name in ROW.findall(markdown))
    return COMMAND.sub(shown, markdown) + listed


def _source(uri: str) -> str:
    """The path in the checkout of a page of the site."""
    return f"docs/{uri}" if (ROOT / "docs" / uri).exists() else uri


def _place(path: str, files: Files) -> str | None:
    """Where the file at `path` of the checkout is on the site."""
    for uri in (path.removeprefix("docs/"), f"files/{path}"):
        if files.get_file_from_path(uri) is not None:
            return uri
    return None


def _linked(files: Files) -> set[str]:
    """Files of the checkout that pages link to and that are on no page."""
    found = set()
    for file in files.documentation_pages():
        here = posixpath.dirname(_source(file.src_uri))
        for _, target, _, _ in LINK.findall(file.content_string):
            path = posixpath.normpath(posixpath.join(here, target))
            if (ROOT / path).is_file() and _place(path, files) is None:
                found.add(path)
    return found


def _paths(nav: Any) -> list[str]:
    """All paths in the navigation."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [path for part in parts for path in _paths(part)]


def _api() -> str:
    """The page of Python's names, from the docstrings."""
    import tensorplug  # noqa: PLC0415 - only a build of the site needs it

    ops = set(tensorplug.ops.__all__)
    names = sorted(name for name in tensorplug.__all__ if name not in ops and not name.isupper())
    lines = [
        "# Python",
        "",
        "Examples take `import numpy as np` and `import tensorplug as tp` for granted. Functions of"
        " ops are on [a page of their own](functions.md).",
    ]
    for name in names:
        if isinstance(getattr(tensorplug, name), type(tensorplug)):
            continue
        lines += ["", f"::: tensorplug.{name}"]
    return "\n".join(lines) + "\n"


def _functions() -> str:
    """The page of the functions that make nodes, from the docstrings."""
    from tensorplug import ops  # noqa: PLC0415

    lines = [
        "# Functions of ops",
        "",
        "Each function adds a node to a graph and returns its result as a tensor. Examples take"
        " `import numpy as np` and `import tensorplug as tp` for granted. [Ops](../ops.md) has the"
        " formulas, and the types that each backend takes.",
    ]
    for name in sorted(ops.__all__):
        if callable(getattr(ops, name)):
            lines += ["", f"::: tensorplug.ops.{name}"]
    return "\n".join(lines) + "\n"


SOURCES = ("core", "testing", "simt", "plugins/*", "apps/*")


def _errors() -> str:
    """The page of all texts of errors and refusals, from the code that raises them."""
    from tensorplug import errors  # noqa: PLC0415

    kinds = {name for name, found in vars(errors).items() if isinstance(found, type)}
    found: dict[str, set[tuple[str, str]]] = {}
    for folder in SOURCES:
        for path in sorted(ROOT.glob(f"{folder}/src/**/*.py")):
            parts = path.relative_to(ROOT).parts
            where = parts[parts.index("src") + 1].removesuffix(".py")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and node.args:
                    kind = getattr(node.func, "id", getattr(node.func, "attr", ""))
                    text = _literal(node.args[0]) if kind in kinds else ""
                    if len(re.sub(r"\W|…", "", text)) > 8:
                        found.setdefault(kind, set()).add((text, where))
    lines = [
        "# Texts of errors",
        "",
        "Every text of an error or a refusal that stands in the code, by class; `…` names the"
        " tensor, the device or the sizes. [Troubleshooting](../troubleshooting.md) explains the"
        " common ones with programs.",
    ]
    for kind in sorted(found):
        lines += ["", f"## {kind}", "", "| text | package |", "|---|---|"]
        for text, where in sorted(found[kind]):
            cell = text.replace("|", "\\|").replace("`", "'").replace("\n", " ").strip()
            lines.append(f"| `{cell}` | {where} |")
    return "\n".join(lines) + "\n"


def _literal(node: ast.expr) -> str:
    """The text of a string, with `…` for what is put in; empty for another expression."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [v.value if isinstance(v, ast.Constant) else "…" for v in node.values]
        return "".join(map(str, parts))
    return ""


def _commands() -> str:
    """The page of commands, from typer's descriptions."""
    from typer.main import get_command  # noqa: PLC0415

    from tensorplug.cli import app as core  # noqa: PLC0415
    from tensorplug_llm.cli import app as llm  # noqa: PLC0415

    lines = [
        "# Commands",
        "",
        "Every command has `--help`. `tensorplug --install-completion` lets a shell complete them.",
    ]
    for name, app in (("tensorplug", core), ("tensorplug-llm", llm)):
        group = get_command(app)
        context = group.make_context(name, [], resilient_parsing=True)
        for command in group.list_commands(context):
            found = group.get_command(context, command)
            if found is not None and not found.hidden:
                inner = found.make_context(f"{name} {command}", [], resilient_parsing=True)
                lines += ["", f"## {name} {command}", "", "```text", *_help(inner), "```"]
    return "\n".join(lines) + "\n"


def _help(context: Any) -> list[str]:
    """What `--help` prints."""
    context.command.rich_markup_mode = None  # plain text, and returned instead of printed
    context.max_content_width = context.terminal_width = 80
    return context.get_help().rstrip().splitlines()

"""What blocks of a page tell an author to do with files."""

from pathlib import Path


def edit(folder: Path, text: str) -> None:
    """Replace the lines with a minus by those with a plus; a last line may be cut short."""
    name, *lines = text.splitlines()
    path = folder / name.removeprefix("--- ")
    old, new = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
    content = path.read_text()
    assert content.count(old) == 1, f"{path.name} has no single {old!r}"
    path.write_text(content.replace(old, new))


def add(folder: Path, text: str) -> None:
    """Write a new file."""
    name, _, content = text.partition("\n")
    (folder / name.removeprefix("--- ")).write_text(content)

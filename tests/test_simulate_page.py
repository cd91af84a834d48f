"""The numbers of `docs/simulate.md` are those of the command; run this file to write them again."""

import json
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "simulate.md"
PLAN = re.compile(r"```toml\n(.*?)```", re.DOTALL)
OUTPUT = re.compile(r"(?<=```text\n)(.*?)(?=```)", re.DOTALL)
TABLE = re.compile(r"(?<=\|---\|---\|---\|---\|---\|\n)((?:\|.*\n)*)")
COUNTS = (1, 2, 4, 8, 16)


def test_page_has_the_numbers_of_the_command(tmp_path):
    text = PAGE.read_text(encoding="utf-8")

    assert renewed(text, tmp_path) == text


def renewed(text: str, folder: Path) -> str:
    """The page with the command's output, and with the table of other counts."""
    programs = Path(sys.executable).parent
    generate = [str(programs / "tensorplug-llm"), "generate", "smollm2-135m"]
    options = ["--prompt", "Hello", "--tokens", "1", "--save-graph", "token.graph"]
    subprocess.run([*generate, *options], cwd=folder, check=True, capture_output=True)
    (found,) = PLAN.findall(text)

    def simulate(count: int, *options: str) -> str:
        plan = found.replace("count = 4 ", f"count = {count} ")
        (folder / "rack.toml").write_text(plan, encoding="utf-8")
        command = [str(programs / "tensorplug"), "simulate", "rack.toml", *options]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        return done.stdout

    rows = "".join(row(count, simulate(count, "--json")) for count in COUNTS)
    output = simulate(4, "--lose", "node2")
    return TABLE.sub(lambda _: rows, OUTPUT.sub(lambda _: output, text))


def row(count: int, output: str) -> str:
    """The line of the table for `count` nodes."""
    whole = json.loads(output)["whole"]
    one, many = whole["texts"]
    shares = {
        "the devices": max(many["busy"]),
        "a link": many["link"],
        "this process": many["driver"],
    }
    busiest = max(shares, key=shares.__getitem__)
    rates = f"{one['tokens_per_second']:.0f} | {many['tokens_per_second']:.0f}"
    first = f"{whole['first_token_seconds']:.2f} s"
    return f"| {count} | {rates} | {first} | {busiest}, {shares[busiest]:.0%} |\n"


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        new = renewed(PAGE.read_text(encoding="utf-8"), Path(folder))
    PAGE.write_text(new, encoding="utf-8")

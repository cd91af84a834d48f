"""Makes terminal.svg, a recording of commands: python docs/pictures/record.py."""

import io
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COMMANDS = (
    "tensorplug-llm generate smollm2-135m --tokens 24 "
    "--prompt 'Once upon a time, there was a little girl'",
    "tensorplug explain --example --device opencl:0 --device cpu",
)
FOLDER = Path(__file__).parent
WIDTH = 104

path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
console = Console(record=True, width=WIDTH, file=io.StringIO())
for command in COMMANDS:
    done = subprocess.run(
        command,
        shell=True,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, "COLUMNS": str(WIDTH)},
    )
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    console.print(Text(done.stdout.rstrip() + "\n"))
console.save_svg(str(FOLDER / "terminal.svg"), title="tensorplug", unique_id="terminal")

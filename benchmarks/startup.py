"""What importing tensorplug, `load_all()` and tensorplug_llm take, in fresh processes in turns.

`architectures_add_ms` is what importing tensorplug_llm takes longer where a distribution on the
path offers MANY more architectures: the median difference of the rounds.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPEATS = 9
MANY = 200
LLM = "import tensorplug_llm"
PROGRAMS = {
    "numpy": "import numpy",
    "import": "import numpy, tensorplug",
    "load_all": "import numpy, tensorplug; tensorplug.load_all()",
    "llm": LLM,
    "llm_many": LLM,
}


def write_distribution(folder: Path) -> None:
    """Install a distribution that offers MANY architectures."""
    info = folder / "many_architectures-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: many-architectures\nVersion: 1.0\n"
    )
    lines = [f"many-{i} = many_architectures.n{i}:ARCHITECTURE" for i in range(MANY)]
    (info / "entry_points.txt").write_text(
        "\n".join(["[tensorplug_llm.architectures]", *lines, ""])
    )


def milliseconds(program: str, environment: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    with tempfile.TemporaryDirectory() as folder:
        write_distribution(Path(folder))
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))
        for _ in range(REPEATS):
            for name, program in PROGRAMS.items():
                more = {"PYTHONPATH": path} if name == "llm_many" else {}
                times[name].append(milliseconds(program, {**os.environ, **more}))
    middle = {name: statistics.median(values) for name, values in times.items()}
    pairs = zip(times["llm"], times["llm_many"], strict=True)
    report = {
        "numpy_ms": middle["numpy"],
        "import_adds_ms": middle["import"] - middle["numpy"],
        "load_all_adds_ms": middle["load_all"] - middle["import"],
        "llm_adds_ms": middle["llm"] - middle["import"],
        "architectures_add_ms": statistics.median(b - a for a, b in pairs),
    }
    print(json.dumps({name: round(value, 1) for name, value in report.items()}, indent=1))


if __name__ == "__main__":
    main()

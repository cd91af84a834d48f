"""What importing tensorplug and `load_all()` add to importing NumPy, in fresh processes."""

import json
import statistics
import subprocess
import sys
import time

REPEATS = 9
PROGRAMS = {
    "numpy": "import numpy",
    "import": "import numpy, tensorplug",
    "load_all": "import numpy, tensorplug; tensorplug.load_all()",
}


def milliseconds(program: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(REPEATS):
        for name, program in PROGRAMS.items():
            times[name].append(milliseconds(program))
    base = statistics.median(times["numpy"])
    middle = {name: statistics.median(values) for name, values in times.items()}
    report = {
        "numpy_ms": round(base, 1),
        "import_adds_ms": round(middle["import"] - base, 1),
        "load_all_adds_ms": round(middle["load_all"] - middle["import"], 1),
    }
    print(json.dumps(report, indent=1))

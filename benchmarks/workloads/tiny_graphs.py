"""Speeds of graphs of 1,000 tiny sums: nodes planned a second, and runs a second."""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from planning import medians, ours, rerun_alone, rerun_on_cpu

NODES = 1_000
DEVICES = (1, 4)


def planning() -> dict[str, float]:
    """Nodes a second, by step and number of devices."""
    speeds = {}
    for devices in DEVICES:
        with ours(devices, NODES) as works:
            found = medians(works, NODES)
        speeds |= {f"{step}, {devices} devices": 1e6 / found[step] for step in found}
    return speeds


def rerun() -> dict[str, float]:
    """Runs a second: on the cpu, and of plans that do nothing."""
    on_cpu = rerun_on_cpu(NODES)["run"] * NODES
    return {"on cpu": 1e6 / on_cpu, "without its nodes": 1e6 / rerun_alone(NODES)}


WORK = {"planning": planning, "rerun": rerun}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=WORK)
    print(json.dumps(WORK[parser.parse_args().work]()))

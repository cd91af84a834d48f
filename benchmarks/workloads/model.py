"""Tokens a second of a language model on a device, or why the model or device is missing."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import tensorplug
from tensorplug_llm.models import cache_folder, find_model

LENGTHS = ("--prompt-tokens", "256", "--tokens", "64", "--repeat", "3")


def model_file(name: str) -> Path:
    """The file of a model: of an installed package, or one that was assembled from it earlier."""
    try:
        return find_model(name)
    except tensorplug.OptionError:
        kept = sorted(cache_folder().glob(f"{name}-*.gguf"))
        if not kept:
            raise
        return kept[0]


def speeds(model: str, device: str) -> dict[str, object]:
    names = [found.name for found in tensorplug.devices()]
    if device not in names:
        return {"skipped": f"there is no device {device}; there are {', '.join(names)}"}
    try:
        path = model_file(model)
    except tensorplug.OptionError as error:
        return {"skipped": str(error)}
    program = Path(sys.executable).with_name("tensorplug-llm")
    command = [program, "bench", path, "--device", device, "--json", *LENGTHS]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return {name: report[f"{name}_tokens_per_s"] for name in ("prefill", "decode")}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("device")
    given = parser.parse_args()
    print(json.dumps(speeds(given.model, given.device)))

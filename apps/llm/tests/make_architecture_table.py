"""Writes the table of architectures into README.md: how far logits are from llama.cpp's in F32.

Every tiny model is read on each kind of device, on two by layers and by parts of layers, and in
each way of `READERS`. Takes minutes. Where architectures are named, the rows of others stay.

    python apps/llm/tests/make_architecture_table.py [ARCHITECTURE]...
"""

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tensorplug as tp
from tensorplug_llm import load_model
from tensorplug_llm.arch import architecture, architecture_names
from tensorplug_llm.testing import TinyCase, tiny_models
from tensorplug_llm.testing.model_tests import READERS

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- architectures: begin -->\n", "<!-- architectures: end -->\n"
COLUMNS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "cpu": (("cpu@tensorplug-cpu",), {}),
    "native": (("cpu@tensorplug-native",), {}),
    "OpenCL": (("opencl:0",), {}),
    "two, by layers": (("opencl:0", "cpu@tensorplug-native"), {}),
    "two, by tensors": (("cpu@tensorplug-cpu", "cpu@tensorplug-native"), {"split": "tensor"}),
}
"""Devices, and options of `load_model`. Two devices read the first model of an architecture."""


def farthest(
    names: list[str], devices: tuple[str, ...], options: dict[str, Any]
) -> dict[str, float]:
    """For each way to read a text the largest distance of these models."""
    worst = dict.fromkeys(READERS, 0.0)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        streams = [opened.enter_context(tp.open(device)) for device in devices]
        for name in names if len(devices) == 1 else names[:1]:
            case = TinyCase.written(name, Path(folder))
            with load_model(case.path, streams, **options) as model:
                for way, read in READERS.items():
                    worst[way] = max(worst[way], case.distance(read(model, case.ids)))
    return worst


def row(architecture: str) -> str:
    """The row of an architecture."""
    models = tiny_models.TINY_MODELS
    names = [name for name in models if models[name].architecture == architecture]
    measured = [farthest(names, *column) for column in COLUMNS.values()]
    alone = [max(found["at once"], found["one by one"]) for found in measured]
    among = max(found["among others"] for found in measured)
    cells = [f"`{architecture}`", str(len(names)), *(f"{n:.1e}" for n in [*alone, among])]
    return "| " + " | ".join(cells) + " |\n"


def main() -> None:
    """Measure and replace the table."""
    os.environ.update(TENSORPLUG_NATIVE_ACTIVATIONS="f32", TENSORPLUG_OPENCL_ACTIVATIONS="f32")
    titles = ["architecture", "models", *COLUMNS, "in a batch"]
    table = f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}\n"
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    written, _, after = rest.partition(END)
    known = {line.split("`")[1]: line for line in written.splitlines(keepends=True)[2:]}
    for name in architecture_names():
        if not architecture(name).generates:
            continue
        stays = bool(sys.argv[1:]) and name not in sys.argv[1:]
        table += known[name] if stays else row(name)
        print(table.splitlines()[-1], file=sys.stderr, flush=True)
    README.write_text(before + BEGIN + table + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()

"""`tensorplug kernels`: lists the kernels of a device and writes their complete sources."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorplug
from tensorplug.device.device import KernelText, SupportsKernelTexts
from tensorplug.errors import Unsupported
from tensorplug.text import table
from tensorplug_testing.cases import build
from tensorplug_testing.tiers import select


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels that a device uses for the cases of the kit, and the ops that use each."""

    device: str
    variants: Mapping[str, Mapping[str, KernelText]]
    """The variants of each kernel, by kernel name and file name."""
    ops: Mapping[str, frozenset[str]]

    def to_json(self) -> dict[str, Any]:
        """Return the list as a dictionary."""
        return {
            "device": self.device,
            "kernels": [
                {
                    "name": name,
                    "origin": self._origin(name),
                    "ops": sorted(self.ops[name]),
                    "variants": {file: dict(text.defines) for file, text in variants.items()},
                }
                for name, variants in sorted(self.variants.items())
            ],
        }

    def _origin(self, name: str) -> str:
        return next(iter(self.variants[name].values())).origin

    def __str__(self) -> str:
        rows = [
            (name, self._origin(name), str(len(variants)), ", ".join(sorted(self.ops[name])))
            for name, variants in sorted(self.variants.items())
        ]
        count = sum(len(variants) for variants in self.variants.values())
        total = f"{self.device}: {len(rows)} kernels in {count} variants"
        return "\n".join([*table(("kernel", "text", "variants", "ops"), rows), "", total])

    def dump(self, folder: Path) -> None:
        """Write the source of every variant into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        for variants in self.variants.values():
            for name, text in variants.items():
                defines = " ".join(f"{key}={value}" for key, value in sorted(text.defines.items()))
                head = f"// {text.name} ({text.origin}): {defines}\n"
                (folder / name).write_text(head + text.source, encoding="utf-8")


def kernels(spec: str, tier: str) -> Kernels:
    """The kernels that the device uses for the kit's cases. Raises Unsupported if it has none."""
    device = tensorplug.device(spec)
    if not isinstance(device, SupportsKernelTexts):
        raise Unsupported(f"{device.name}: does not compile kernels from texts")
    variants: dict[str, dict[str, KernelText]] = {}
    ops: dict[str, set[str]] = {}
    for case in select(tier):
        node = build(case).node
        for text in device.kernel_texts(node):
            digest = hashlib.sha256(text.source.encode()).hexdigest()[:8]
            variants.setdefault(text.name, {})[f"{text.name}-{digest}{text.suffix}"] = text
            ops.setdefault(text.name, set()).add(node.op)
    return Kernels(device.name, variants, {name: frozenset(found) for name, found in ops.items()})

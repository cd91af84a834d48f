"""`tensorplug kernels`: lists the kernels of a device and writes their complete sources."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorplug
from tensorplug.device import KernelText, SupportsKernelTexts
from tensorplug.errors import BackendUnavailable, Unsupported
from tensorplug.text import counted, table
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
                    "file": self._first(name).file,
                    "lowering": self._first(name).lowering,
                    "ops": sorted(self.ops[name]),
                    "signature": self._first(name).signature,
                    "variants": {
                        file: {**text.types, **text.defines} for file, text in variants.items()
                    },
                }
                for name, variants in sorted(self.variants.items())
            ],
        }

    def _first(self, name: str) -> KernelText:
        return next(iter(self.variants[name].values()))

    def __str__(self) -> str:
        rows = [
            (name, self._first(name).file, str(len(variants)), ", ".join(sorted(self.ops[name])))
            for name, variants in sorted(self.variants.items())
        ]
        parts = f"{counted(len(rows), 'kernel')} in {counted(self._variants, 'variant')}"
        texts = [self._first(name) for name in sorted(self.variants)]
        chosen = [f"{text.signature}\n  chosen by {text.lowering}" for text in texts]
        listed = table(("kernel", "file", "variants", "ops"), rows)
        return "\n".join([*listed, "", *chosen, "", f"{self.device}: {parts}"])

    def dump(self, folder: Path) -> str:
        """Write the source of every variant into `folder`; returns a line that says so."""
        folder.mkdir(parents=True, exist_ok=True)
        for variants in self.variants.values():
            for name, text in variants.items():
                chosen = {**text.types, **text.defines}
                defines = " ".join(f"{key}={value}" for key, value in sorted(chosen.items()))
                head = f"// {text.signature}, {text.file}: {defines}\n"
                (folder / name).write_text(head + text.source, encoding="utf-8")
        return f"wrote {counted(self._variants, 'source')} into {folder}"

    @property
    def _variants(self) -> int:
        return sum(len(variants) for variants in self.variants.values())


def kernels(spec: str, tier: str, ops: Sequence[str] = ()) -> Kernels:
    """The kernels that the device uses for the kit's cases, of `ops` if there are any.

    Raises BackendUnavailable, Unsupported if the device has none, OptionError for unknown ops.
    """
    try:
        device = tensorplug.device(spec)
    except BackendUnavailable as error:
        raise BackendUnavailable(f"{error}; {_elsewhere()}") from error.__cause__
    if not isinstance(device, SupportsKernelTexts):
        raise Unsupported(f"{device.name}: does not compile kernels from texts")
    variants: dict[str, dict[str, KernelText]] = {}
    used: dict[str, set[str]] = {}
    for case in select(tier, ops=ops):
        node = build(case).node
        for text in device.kernel_texts(node):
            variants.setdefault(text.name, {})[_file(text)] = text
            used.setdefault(text.name, set()).add(node.op)
    return Kernels(device.name, variants, {name: frozenset(found) for name, found in used.items()})


def _elsewhere() -> str:
    """Where the kernels of a device that this machine does not have are listed."""
    here = [each.name for each in tensorplug.devices() if isinstance(each, SupportsKernelTexts)]
    shared = f", and tensorplug kernels --device {here[0]} lists those that GPUs share"
    return (
        'kernels are listed where the device is. The table "Find a kernel" in the README of '
        f"tensorplug-simt names their files for every op and backend{shared if here else ''}"
    )


def _file(text: KernelText) -> str:
    """A file name: `attend_row-q8_0-1a2b3c4d.cl`, with the types other than f32 and i32."""
    types = dict.fromkeys(text.types.values())
    named = [name for name in types if name not in ("f32", "i32")] or list(types)[:1]
    digest = hashlib.sha256(text.source.encode()).hexdigest()[:8]
    return f"{'-'.join([text.name, *named, digest])}{text.suffix}"

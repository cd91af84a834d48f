"""`Certificate`: the result of the kit on one device on one page, as Markdown and as JSON."""

import importlib.metadata
import platform
import re
import shlex
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorplug.device import DeviceInfo
from tensorplug.ops.table import OPS
from tensorplug.text import human

if TYPE_CHECKING:
    from tensorplug_testing.run import Run

LONGEST = 20
"""The most reasons on the page; the JSON file has all."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The kit's result on one device, with the versions and the seed to repeat it."""

    run: "Run"
    spec: str
    info: DeviceInfo
    origin: str
    """The distribution that offers the device: `tensorplug-cpu 0.3.0`."""

    def to_json(self) -> dict[str, Any]:
        """Return the certificate as a dictionary."""
        return {
            "certified": self.run.passed,
            "device": {**asdict(self.info), "type": self.info.type.value},
            "environment": self._environment(),
            **self.run.to_json(),
        }

    def write(self, folder: Path, text: str) -> tuple[Path, Path]:
        """Write both reports into `folder`; `text` is the JSON one. Returns their paths."""
        stem = re.sub(r"[^\w.-]+", "-", f"certificate-{self._name}")
        page, data = folder / f"{stem}.md", folder / f"{stem}.json"
        page.write_text(f"{self}\n", encoding="utf-8")
        data.write_text(text + "\n", encoding="utf-8")
        return page, data

    @property
    def _name(self) -> str:
        """The device's name, with its options if there are any: `opencl:0?profile=1`."""
        options = self.spec.partition("?")[2]
        return f"{self.info.name}?{options}" if options else self.info.name

    def __str__(self) -> str:
        return "\n".join([*self._head(), *self._ops(), *self._failures(), *self._refusals()])

    def _head(self) -> list[str]:
        run, info = self.run, self.info
        verdict = "passes" if run.passed else "does not pass"
        device = shlex.quote(self.spec)
        again = f"tensorplug certify --device {device} --tier {run.tier} --seed {run.seed}"
        facts = {
            "device": f"{info.description} ({info.type.value}, {human(info.memory_total)})",
            "cases and tests": ", ".join(
                f"{run.count(v)} {v}" for v in ("passed", "failed", "refused")
            ),
            "ops": f"{len(run.ops)} of {sum(not op.is_view for op in OPS.values())} that compute",
            "abilities": ", ".join(k for k, v in asdict(info.capabilities).items() if v) or "none",
            **self._environment(),
            "again": f"`{again}`",
        }
        rows = [f"| {name} | {value} |" for name, value in facts.items()]
        title = f"# {self._name} {verdict} the conformance kit (tier {run.tier})"
        return [title, "", "| | |", "|---|---|", *rows]

    def row(self) -> str:
        """The row of the device in the table of certified backends, in docs/compatibility.md."""
        counts = ", ".join(f"{self.run.count(v)} {v}" for v in _VERDICTS)
        cells = (
            f"`{self.spec}`",
            self.origin,
            self.info.description.replace("|", "/"),
            f"{counts} (tier {self.run.tier}, seed {self.run.seed})",
            f"{len(self.run.ops)} of {sum(not op.is_view for op in OPS.values())}",
            self._environment()["date"],
        )
        return f"| {' | '.join(cells)} |"

    def _environment(self) -> dict[str, str]:
        names = ("tensorplug", "tensorplug-cpu", "numpy")
        known = [f"{name} {importlib.metadata.version(name)}" for name in names]
        versions = ", ".join(dict.fromkeys([self.origin, *known]))
        return {
            "versions": f"{versions}, Python {platform.python_version()}",
            "system": f"{platform.system()} {platform.release()} ({platform.machine()})",
            "date": datetime.now(UTC).date().isoformat(),
        }

    def _ops(self) -> list[str]:
        counts = Counter((o.op, o.verdict) for o in self.run.outcomes)
        whole = [op for op in self.run.ops if not counts[op, "refused"] + counts[op, "failed"]]
        part = [
            f"{op} ({counts[op, 'refused']} of {sum(counts[op, v] for v in _VERDICTS)} refused)"
            for op in self.run.ops
            if counts[op, "refused"]
        ]
        lines = ["", "## Ops", "", f"All cases: {', '.join(whole) or 'none'}."]
        return [*lines, "", f"Some cases: {', '.join(part)}."] if part else lines

    def _failures(self) -> list[str]:
        lines = self.run.failures("the JSON report has all")
        count = self.run.count("failed")
        return ["", f"## {count} failures", "", "```text", *lines, "```"] if lines else []

    def _refusals(self) -> list[str]:
        reasons = Counter(o.detail for o in self.run.outcomes if o.verdict == "refused")
        if not reasons:
            return []
        shown = [f"- {count} x {reason}" for reason, count in reasons.most_common(LONGEST)]
        rest = len(reasons) - LONGEST
        more = [f"- and {rest} more, in the JSON report"] if rest > 0 else []
        return ["", "## Refusals", "", *shown, *more]


_VERDICTS = ("passed", "failed", "refused")

"""Whether this checkout is slower than COMMIT: pairs of fresh processes, one of each, in turns.

The first process of a pair is COMMIT's in even pairs and this checkout's in odd ones, so that what
the machine does in the meantime meets both. A figure is slower where the upper end of the 95 %
bootstrap interval of the median ratio after / before of its speed is below 0.97; the exit status
is then 1. COMMIT has a git worktree and an environment of its own, which uv makes; each side runs
the workloads of its own checkout, because they use its API.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 0.97
PAIRS = 15
"""The least number of pairs from which an interval is taken."""
RESAMPLES = 10_000

WORKLOADS = {
    "startup": ("startup.py",),
    "planning": ("tiny_graphs.py", "planning"),
    "rerun": ("tiny_graphs.py", "rerun"),
    "smollm2-native": ("model.py", "smollm2-135m", "cpu:0"),
    "smollm2-opencl": ("model.py", "smollm2-135m", "opencl:0"),
    "gemma3-native": ("model.py", "gemma3-270m", "cpu:0"),
    "gemma3-opencl": ("model.py", "gemma3-270m", "opencl:0"),
}
"""Files of `workloads` and their arguments. Each prints one JSON object: speeds by figure."""

Speeds = Mapping[str, float]


class NotHere(Exception):
    """A workload that this machine cannot run, and why."""


@dataclass(frozen=True)
class Side:
    """A checkout, and the Python of its environment."""

    name: str
    root: Path
    python: str

    def speeds(self, workload: Sequence[str]) -> Speeds:
        """What one fresh process measures. Raises NotHere, or SystemExit where it fails."""
        file, *arguments = workload
        own = self.root / "benchmarks" / "workloads" / file
        # A commit without the workload runs that of this checkout.
        path = own if own.exists() else ROOT / "benchmarks" / "workloads" / file
        command = [self.python, str(path), *arguments]
        with tempfile.TemporaryDirectory() as elsewhere:
            done = subprocess.run(
                command, cwd=elsewhere, capture_output=True, text=True, check=False
            )
        if done.returncode:
            raise SystemExit(f"before_after: {self.name}: {' '.join(command)}\n{done.stderr}")
        found = json.loads(done.stdout)
        if "skipped" in found:
            raise NotHere(f"{self.name}: {found['skipped']}")
        return dict(found)


@dataclass(frozen=True)
class Verdict:
    """The median ratio after / before of a figure, and its 95 % interval."""

    median: float
    low: float
    high: float
    before: float
    """Median speed before."""
    after: float

    @property
    def width(self) -> float:
        return self.high - self.low

    @property
    def slower(self) -> bool:
        return self.high < LIMIT


def judge(pairs: Sequence[tuple[float, float]]) -> Verdict:
    """The verdict over pairs of speeds (before, after)."""
    before, after = np.asarray(pairs, np.float64).T
    ratios = after / before
    drawn = np.random.default_rng(0).choice(ratios, (RESAMPLES, len(ratios)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    middle = (float(np.median(values)) for values in (before, after))
    return Verdict(float(np.median(ratios)), float(low), float(high), *middle)


def measure(
    before: Side, after: Side, names: Sequence[str], pairs: int
) -> tuple[dict[str, Verdict], dict[str, str]]:
    """Verdicts by figure; the reason for each workload or figure that was left out."""
    left_out = {}
    for name in names:
        # The first process of a side writes byte code and fills caches of kernels.
        try:
            first, second = (side.speeds(WORKLOADS[name]) for side in (before, after))
        except NotHere as reason:
            left_out[name] = str(reason)
        else:
            for figure in first.keys() ^ second.keys():
                where = before.name if figure in first else after.name
                left_out[f"{name}: {figure}"] = f"measured {where} only"
    names = [name for name in names if name not in left_out]
    found: dict[str, list[tuple[float, float]]] = {}
    # All workloads in each pair: a slow minute of the machine meets a pair of each.
    with tqdm(total=pairs * len(names), unit="pair", disable=None, file=sys.stderr) as bar:
        for pair in range(pairs):
            for name in names:
                bar.set_description(name)
                for figure, speeds in one_pair(before, after, WORKLOADS[name], pair).items():
                    found.setdefault(f"{name}: {figure}", []).append(speeds)
                bar.update()
    return {figure: judge(speeds) for figure, speeds in found.items()}, left_out


def one_pair(
    before: Side, after: Side, workload: Sequence[str], number: int
) -> dict[str, tuple[float, float]]:
    """Speeds (before, after) of the figures that both sides measure."""
    turns = (before, after) if number % 2 == 0 else (after, before)
    speeds = {side.name: side.speeds(workload) for side in turns}
    first, second = speeds[before.name], speeds[after.name]
    return {figure: (first[figure], second[figure]) for figure in first if figure in second}


@contextmanager
def checkout(commit: str) -> Iterator[Side]:
    """A worktree of the commit with an environment of its own; both are removed afterwards."""
    uv = shutil.which("uv")
    if uv is None:
        raise SystemExit("before_after: uv is not on PATH, and makes the other environment")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        made = subprocess.run(
            [*git, "add", "--quiet", "--detach", str(root), commit],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise SystemExit(f"before_after: there is no commit {commit!r}: {made.stderr.strip()}")
        try:
            environ = {name: v for name, v in os.environ.items() if name != "VIRTUAL_ENV"}
            environ["UV_PROJECT_ENVIRONMENT"] = str(root / ".venv")
            subprocess.run([uv, "sync", "--quiet"], cwd=root, env=environ, check=True)
            yield Side("before", root, str(root / ".venv" / "bin" / "python"))
        finally:
            subprocess.run([*git, "remove", "--force", str(root)], check=True)


def lines(verdicts: Mapping[str, Verdict], left_out: Mapping[str, str]) -> Iterator[str]:
    """The report for people."""
    yield f"{'figure':40} {'before':>10} {'after':>10} {'ratio':>6}  95 % interval  width"
    for figure, v in verdicts.items():
        yield (
            f"{figure:40} {v.before:10.4g} {v.after:10.4g} {v.median:6.3f}  "
            f"{v.low:.3f} to {v.high:.3f} {v.width:6.3f}{'  SLOWER' if v.slower else ''}"
        )
    for name, reason in left_out.items():
        yield f"{name}: left out; {reason}"


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of a call."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", help="what this checkout is compared with")
    parser.add_argument(
        "--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="WORKLOAD",
        help=f"workloads to run: {', '.join(WORKLOADS)}",
    )  # fmt: skip
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"at least {PAIRS}, the default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the figures")
    given = parser.parse_args(arguments)
    if given.pairs < PAIRS:
        parser.error(f"--pairs is {given.pairs}; an interval needs at least {PAIRS}")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    given = parsed(arguments)
    with checkout(given.commit) as before:
        after = Side("after", ROOT, sys.executable)
        verdicts, left_out = measure(before, after, given.only, given.pairs)
    print(*lines(verdicts, left_out), sep="\n")
    if given.json is not None:
        figures = {f: {**asdict(v), "slower": v.slower} for f, v in verdicts.items()}
        report = {"pairs": given.pairs, "figures": figures, "left out": left_out}
        given.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if not verdicts:
        print("before_after: no workload was measured", file=sys.stderr)
    return int(not verdicts or any(v.slower for v in verdicts.values()))


if __name__ == "__main__":
    sys.exit(main())

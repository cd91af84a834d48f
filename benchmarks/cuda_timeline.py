"""Where the time of a token, or of a prompt, goes on an NVIDIA GPU: each kernel, and the gaps.

`FILE` decodes tokens, `FILE --prompt 512` reads prompts of that many tokens one after the other.
PyTorch's profiler tells when kernels run, also those of captured graphs; it watches few steps,
after others were timed without it.
"""

import argparse
import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import tensorplug as tp
from tensorplug_llm import load_model
from tensorplug_llm.testing import LoneText

WARM_UP = 20
"""Steps that plan, capture, and load kernels."""
TIMED = 64
WATCHED = 4
PAUSE = 200_000
"""Nanoseconds between events beyond which the GPU waited for the next step."""


@dataclass(slots=True)
class Total:
    """What launches of one name took, in nanoseconds."""

    count: int = 0
    busy: int = 0
    before: int = 0
    """Gaps before them."""


def watched(step: Callable[[], object], count: int) -> dict[str, Total]:
    """Launches and transfers of `count` steps, by name."""
    profiler = import_module("torch.profiler")
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(count):
            step()
    events = [
        (event.start_ns(), event.duration_ns(), event.name())
        for event in profile.profiler.kineto_results.events()
        if "CUDA" in str(event.device_type())
    ]
    found: dict[str, Total] = defaultdict(Total)
    end = 0
    for start, took, name in sorted(events):
        total = found[name]
        total.count += 1
        total.busy += took
        total.before += start - end if 0 < start - end < PAUSE else 0
        end = max(end, start + took)
    return dict(found)


def show(found: dict[str, Total], steps: int, seconds: float) -> None:
    """A line for each name, the longest first."""
    busy = sum(total.busy for total in found.values()) / steps / 1e3
    print(f"a step takes {seconds * 1e6:.0f} us, and the GPU is busy for {busy:.0f} us of it")
    print("launches a step, us each, us a step, us of gap before each, name")
    for name, total in sorted(found.items(), key=lambda item: -item[1].busy):
        print(
            f"{total.count / steps:8.1f} {total.busy / total.count / 1e3:9.2f} "
            f"{total.busy / steps / 1e3:9.1f} {total.before / total.count / 1e3:7.2f}  {name[:90]}"
        )


def timed(step: Callable[[], object], count: int) -> float:
    """The median seconds of a step."""
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def parser() -> argparse.ArgumentParser:
    """What the command takes."""
    found = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    found.add_argument("file", type=Path, help="a model")
    found.add_argument("--prompt", type=int, default=0, help="tokens of a prompt; 0 decodes")
    found.add_argument("--device", default="cuda:0")
    return found


def main() -> None:
    """Measure and print."""
    arguments = parser().parse_args()
    prompt = [1 + i % 300 for i in range(arguments.prompt)]
    with tp.open(arguments.device) as stream, load_model(arguments.file, [stream]) as model:
        gc.freeze()
        steps = 3 if prompt else WARM_UP
        counts = (2, 1) if prompt else (TIMED, WATCHED)
        needed = (steps + sum(counts)) * max(len(prompt), 1)
        with LoneText(model, needed) as text:

            def step() -> object:
                return text.prefill(prompt) if prompt else text.decode(1)

            for _ in range(steps):
                step()
            seconds = timed(step, counts[0])
            show(watched(step, counts[1]), counts[1], seconds)


if __name__ == "__main__":
    main()

"""What re-running plans costs the host, what branches save, and what allocating memory costs."""

import statistics
import time
from collections.abc import Callable
from typing import Any

from chains import STEPS, planned
from cuda_measure import BRANCHES, WARM_UP, Bench, NotRun, seconds, streams
from cupy import cuda

from tensorplug.device import Backend

RUNS = 50


# --- plans ---------------------------------------------------------------------------------------


def plans(bench: Bench) -> dict[str, Any]:
    """Microseconds of the host for a run, by number of nodes, each of which needs the last."""
    found = {}
    with streams() as (stream,):
        for nodes in bench.sizes.nodes:
            with planned(stream, nodes) as plan:
                took = bench.figure(f"{nodes} nodes", host_seconds(plan.run, stream) * 1e6, "us")
                how = {name: getattr(plan, name) for name in ("launches", "recorded", "refusal")}
                found[nodes] = {"run": took, **how}
    most = max(found, key=lambda nodes: found[nodes]["run"].value)
    bench.ask("rerun", found[most]["run"], f"{most} nodes")
    return {"nodes": found}


def branches(bench: Bench) -> dict[str, Any]:
    """Microseconds for a run of chains that need nothing of each other, by number of streams."""
    found: dict[str, Any] = {}
    chains, nodes = len(STEPS), bench.sizes.nodes[1]
    for count in (1, BRANCHES):
        with streams(branches=count) as (stream,), planned(stream, nodes, chains) as plan:
            took = seconds(plan.run, stream.synchronize, bench.sizes.seconds) * 1e6
            name = f"{chains} chains of {nodes}, streams: {count}"
            how = {key: getattr(plan, key) for key in ("launches", "branches", "longest")}
            found[f"streams {count}"] = {"run": bench.figure(name, took, "us"), **how}
    return found


def host_seconds(work: Callable[[], object], stream: Backend) -> float:
    """The median seconds until `work` returns while the GPU has nothing else to do."""
    times = []
    for _ in range(WARM_UP + RUNS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
        stream.synchronize()
    return statistics.median(times[WARM_UP:])


# --- allocation ----------------------------------------------------------------------------------


def allocation(bench: Bench) -> dict[str, Any]:
    """Microseconds to allocate and to free by the driver, CuPy's pool and the driver's own pool."""
    found: dict[str, Any] = {}
    for name, way in WAYS.items():
        try:
            allocate, kept, give_back = way(bench)
        except NotRun as reason:
            found[name] = {"not run": str(reason)}
            continue
        times = {size: timed(bench, name, allocate, size) for size in bench.sizes.allocated}
        # All of it was freed, so what the GPU still lacks is what the pool keeps.
        found[name] = {"sizes": times, "kept": bench.figure(f"{name} keeps", kept(), "bytes")}
        give_back()
    return found


Way = tuple[Callable[[int], Any], Callable[[], int], Callable[[], object]]


def timed(bench: Bench, name: str, allocate: Callable[[int], Any], size: int) -> dict[str, Any]:
    """Medians of both."""
    times = []
    for _ in range(WARM_UP + RUNS):
        start = time.perf_counter()
        memory = allocate(size)
        had = time.perf_counter()
        del memory
        times.append((had - start, time.perf_counter() - had))
    got, freed = (statistics.median(column) * 1e6 for column in zip(*times[WARM_UP:], strict=True))
    return {
        "allocate": bench.figure(f"{name}, {size} bytes", got, "us"),
        "free": bench.figure(f"{name}, {size} bytes freed", freed, "us"),
    }


def by_driver(_bench: Bench) -> Way:
    """cudaMalloc, which the backend uses."""
    return lambda size: cuda.MemoryPointer(cuda.Memory(size), 0), taken(), lambda: None


def by_pool(bench: Bench) -> Way:
    """CuPy's pool, which keeps what is freed."""
    bench.only_on_a_gpu("pool")
    pool = cuda.MemoryPool()
    return pool.malloc, taken(), pool.free_all_blocks


def by_async_pool(bench: Bench) -> Way:
    """The driver's pool (cudaMallocAsync), in the order of a stream."""
    bench.only_on_a_gpu("asynchronous pool")
    pool = cuda.MemoryAsyncPool()
    return pool.malloc, taken(), pool.free_all_blocks


def taken() -> Callable[[], int]:
    """What counts the bytes of the GPU that are gone since now."""
    cuda.Device(0).synchronize()
    before, _ = cuda.runtime.memGetInfo()

    def since() -> int:
        cuda.Device(0).synchronize()
        return int(before - cuda.runtime.memGetInfo()[0])

    return since


WAYS: dict[str, Callable[[Bench], Way]] = {
    "driver": by_driver,
    "CuPy's pool": by_pool,
    "driver's pool": by_async_pool,
}

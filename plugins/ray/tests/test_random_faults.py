"""Random faults between this process and actors: right tokens or a typed error, and nothing left.

A program generates texts over two actors. It runs once undisturbed, and the calls that each actor
gets are counted; then it runs again and again with one fault at a random call.
"""

import contextlib
import gc
import importlib.util
import json
import os
import random
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tensorplug as tp
from tensorplug.errors import DeviceError, OutOfMemory, TensorplugError
from tensorplug_ray.worker import failed

llm = pytest.importorskip("tensorplug_llm")
tiny_models = pytest.importorskip("tensorplug_llm.testing.tiny_models")
ray = pytest.importorskip("ray")
HAS_SERVER = importlib.util.find_spec("uvicorn") is not None
if HAS_SERVER:
    import uvicorn

    from tensorplug_llm.serve.app import Server
    from tensorplug_llm.serve.limits import Limits
    from tensorplug_llm.serve.running import bound, served

COUNT = int(os.environ.get("TENSORPLUG_RAY_FAULTS", "10"))
SEED = int(os.environ.get("TENSORPLUG_RAY_SEED", "1"))
BLOCK = 50
"""Faults of a test: shards of `./verify ray` take some of the tests each."""
CPU = "cpu@tensorplug-cpu?threads=1"
"""Its tokens do not depend on how many are read at once, as those of products in int8 do."""
LIMIT = 5.0
"""Seconds after which an actor that does not answer counts as lost."""
PATIENCE = 60.0
"""Seconds in which a process must end."""
WAYS = ("one by one", "together", *(("served",) if HAS_SERVER else ()))
TOKENS = 8
PROMPTS = [[1, *range(10, 10 + size)] for size in (3, 11, 6)]
CASTS = frozenset({"free", "drop", "close_stream", "use_for"})
"""Calls whose answer no caller reads. They are always sent: else their memory would be left."""
KINDS = ("killed", "killed later", "cut", "refused", "slow", "full", "failing")


class Stuck:
    """An actor that gives no answer before it is ended: the other end of a link that was cut."""

    def wait(self, *_args):
        while True:
            time.sleep(1)


class Boundary:
    """Stands for `send` of a link: passes calls on, except for a fault from one call on."""

    def __init__(self, device):
        self._send = device.link.send
        self._pid = device.facts["pid"]
        self._others = []
        self.calls = 0
        self.kind, self.at = "", -1
        device.link.send = self

    def __call__(self, method, *args, values=1):
        self.calls += 1
        if self.calls < self.at or not self.kind or method in CASTS:
            return self._send(method, *args, values=values)
        return getattr(self, self.kind.replace(" ", "_"))(method, args, values)

    def end(self):
        """No faults from now on."""
        self.kind = ""
        for other in self._others:
            ray.kill(other)
        self._others = []

    def killed(self, method, args, values):
        self.kind = ""
        os.kill(self._pid, signal.SIGKILL)
        return self._send(method, *args, values=values)

    def killed_later(self, method, args, values):
        self.kind = ""
        made = self._send(method, *args, values=values)
        os.kill(self._pid, signal.SIGKILL)
        return made

    def cut(self, _method, _args, values):
        return self._other().wait.options(num_returns=values).remote()

    def refused(self, _method, _args, values):
        other = self._other()
        ray.kill(other)
        return other.wait.options(num_returns=values).remote()

    def slow(self, method, args, values):
        self.kind = ""
        time.sleep(0.2)
        return self._send(method, *args, values=values)

    def full(self, _method, _args, values):
        return self._failed(OutOfMemory("no memory is left, as the test planned"), values)

    def failing(self, _method, _args, values):
        return self._failed(DeviceError("fails as the test planned"), values)

    def _failed(self, error, values):
        self.kind = ""
        made = [ray.put(failed(error)), *(ray.put(None) for _ in range(values - 1))]
        return made[0] if values == 1 else made

    def _other(self):
        self._others.append(ray.remote(num_cpus=0)(Stuck).remote())
        return self._others[-1]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "llama.gguf"
    tiny_models.write("llama", path)
    return path


def texts(streams, file, *, way, on_failure="replan", meanwhile=lambda engine: None):
    """Tokens of texts: one after the other, together by an engine with a thread, or as text by a
    server."""
    with (
        llm.load_model(file, streams) as model,
        llm.Engine(
            model,
            context=64,
            texts=3,
            rows=192,
            threaded=way != "one by one",
            on_failure=on_failure,
        ) as engine,
    ):
        if way == "served":
            return answers(model, engine, meanwhile)
        params = llm.SamplingParams(temperature=0, max_tokens=TOKENS)
        made = [engine.submit(prompt, params) for prompt in PROMPTS]
        found = []
        for stream in made:
            found.append([sampled.token for sampled in stream])
            meanwhile(engine)
        return found


def answers(model, engine, meanwhile):
    """The texts that a server answers with. Raises DeviceError where it answers with its error."""
    with serving(model, engine) as url, ThreadPoolExecutor(len(PROMPTS)) as pool:
        found = []
        for status, answer in pool.map(lambda prompt: asked(url, prompt), PROMPTS):
            meanwhile(engine)
            found.append((status, answer))
    for status, answer in found:
        if status != 200:
            assert answer["error"]["type"] == "server_error", answer
            raise DeviceError(answer["error"]["message"])
    return [answer["choices"][0]["text"] for _, answer in found]


@contextlib.contextmanager
def serving(model, engine):
    """The address of a server of the engine."""
    app = Server([served("tiny", model, engine)], limits=Limits()).app
    config = uvicorn.Config(app, ws="none", lifespan="off", log_level="critical")
    server, listening = uvicorn.Server(config), bound("127.0.0.1", 0)
    listening.listen()  # requests wait until the server runs
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def asked(url, prompt):
    """Status and body of a completion."""
    body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def outcome(devices, file, wanted, **options):
    """How a program ended, in words. Raises AssertionError for wrong tokens."""
    again = []

    def take_back(engine):
        for name in engine.lost:
            device = next(device for device in devices if device.name == name)
            again.append(device.restarted())
            engine.take_back(again[-1].open())
            break

    streams = []
    try:
        streams += [device.open() for device in devices]
        found = texts(streams, file, **options, meanwhile=take_back)
        assert found == wanted
        return "right, taken back" if again else "right"
    except TensorplugError as error:
        return type(error).__name__
    finally:
        for stream in streams:
            stream.close(force=True)
        for device in again:
            device.close(force=True)


def ends(pid):
    """True if a process ends in time."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def resident(pid="self"):
    """Bytes of memory of a process; 0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("start", range(0, COUNT, BLOCK))
def test_random_faults_give_right_tokens_or_a_typed_error_and_leave_nothing(
    cluster, file, record_property, start
):
    seeds = range(SEED + start, SEED + min(start + BLOCK, COUNT))
    devices = cluster(CPU, CPU, limit=LIMIT)
    with tp.open(CPU) as local:
        wanted = {way: texts([local], file, way=way) for way in WAYS}
    calls = {}
    for device in devices:
        Boundary(device)
        device.link.limit = None  # nothing fails yet, however slow the machine is
    for way in WAYS:
        before = [device.link.send.calls for device in devices]
        assert outcome(devices, file, wanted[way], way=way) == "right"
        now = [device.link.send.calls for device in devices]
        calls[way] = [b - a for a, b in zip(before, now, strict=True)]

    for device in devices:
        device.link.limit = LIMIT
    tally, sizes = Counter(), defaultdict(list)
    for seed in seeds:
        rng = random.Random(seed)
        kind, which, way = rng.choice(KINDS), rng.randrange(2), rng.choice(WAYS)
        on_failure = rng.choice(("replan", "replan", "raise"))
        boundary = devices[which].link.send
        at = rng.randrange(calls[way][which])
        case = f"seed {seed}: ray:{which} {kind} at call {at}, {way}, {on_failure}"
        print(case)
        boundary.at, boundary.kind = boundary.calls + at, kind

        ended = outcome(devices, file, wanted[way], way=way, on_failure=on_failure)
        boundary.end()
        tally[f"{kind}: {ended}"] += 1

        for i, device in enumerate(devices):
            if not device.link.lost:
                with contextlib.suppress(DeviceError):  # killed by its last call
                    assert device.link.call("counts") == (0, 0, 0), case
            if device.link.lost:
                assert ends(device.facts["pid"]), case
                devices[i] = device.restarted()
                Boundary(devices[i])
                device.close(force=True)
        gc.collect()
        for pid in ("self", *(device.facts["pid"] for device in devices)):
            sizes[pid].append(resident(pid))

    print(*(f"{what}: {count}" for what, count in sorted(tally.items())), sep="\n")
    record_property("attempts", len(seeds))
    for device in devices:
        device.close(force=True)
    for found in sizes.values():  # an actor that was ended has few
        early = BLOCK // 5
        assert len(found) <= early or found[-1] - found[early] < 64 << 20
    ways = {what.partition(": ")[2] for what in tally}
    assert len(seeds) < BLOCK or ways > {"right", "right, taken back"}  # and errors
    left = ray._private.worker.global_worker.core_worker.get_all_reference_counts()
    assert len(left) <= 8

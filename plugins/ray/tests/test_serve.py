"""Replicas of the server on Ray Serve."""

import asyncio
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest

from tensorplug.errors import DeviceLost

from .processes import descendants, exists, wait_until

pytest.importorskip("tensorplug_llm.serve.app")
tiny_models = pytest.importorskip("tensorplug_llm.testing.tiny_models")
ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("fastapi") is None, reason="tensorplug-ray[serve] is not installed"
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Ray Serve's own
]

CPU = "cpu@tensorplug-cpu?threads=1"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "llama.gguf"
    tiny_models.write("llama", path)
    return path


def serve_two(file, port):
    """Serve a tiny model by two replicas."""
    from tensorplug_ray.serve.replica import Settings
    from tensorplug_ray.serve.running import serve

    address = os.environ.get("RAY_ADDRESS", "local")
    serve(Settings(str(file), (CPU,), context=64), replicas=2, address=address, port=port)


@pytest.fixture(scope="module")
def url(file):
    """The address of two replicas of a tiny model."""
    from tensorplug_ray.serve.running import end

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve_two(file, port)
    yield f"http://127.0.0.1:{port}"
    end()


def asked(url, number, **more):
    """The status and the body of a completion of one of four prompts."""
    body = {"prompt": [1, 10 + number % 4, 11], "max_tokens": 30, "temperature": 0, **more}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def text_of(answer):
    status, body = answer
    assert status == 200, body
    return json.loads(body)["choices"][0]["text"]


def streamed(answer):
    """The text of an answer in events, which are all there."""
    status, body = answer
    assert status == 200, body
    *events, last = [line for line in body.decode().splitlines() if line.startswith("data: ")]
    assert last == "data: [DONE]"
    return "".join(json.loads(event[6:])["choices"][0]["text"] for event in events)


def replicas():
    """The names of the actors that are replicas of the model."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return sorted(a["name"] for a in named if "#replica#" in a["name"])


def test_streamed_answer_has_the_text_of_a_whole_one(url):
    whole = text_of(asked(url, 1))

    assert streamed(asked(url, 1, stream=True)) == whole


def test_refusal_of_a_replica_is_the_answer(url):
    status, body = asked(url, 1, max_tokens=-1)

    assert status == 400
    assert "max_tokens" in json.loads(body)["error"]["message"]


def test_replica_whose_engine_failed_says_so_at_each_check(file, monkeypatch):
    from tensorplug_ray.serve.replica import Replica, Settings

    monkeypatch.setenv("TENSORPLUG_DISABLE", "ray")  # a replica sets it for its own process
    replica = Replica(Settings(str(file), (CPU,), context=64))
    replica.check_health()
    failure = DeviceLost("cpu: fails as the test planned")
    monkeypatch.setattr(replica._engine, "_failure", failure)

    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"unhealthy: .* fails as the test planned"):
            replica.check_health()
    assert failure.__traceback__ is None  # raised again and again it would grow


def test_replica_killed_under_load_loses_no_request(url):
    wanted = [text_of(asked(url, number)) for number in range(4)]
    victim, *others = replicas()
    assert others
    begun = threading.Event()

    def ask(number):
        if number == 12:
            begun.set()
        return text_of(asked(url, number))

    with ThreadPoolExecutor(6) as threads:
        found = [threads.submit(ask, number) for number in range(48)]
        assert begun.wait(60)
        ray.kill(ray.get_actor(victim, namespace="serve"))
        texts = [future.result() for future in found]

    assert texts == [wanted[number % 4] for number in range(48)]


def test_ray_is_left_although_replicas_do_not_end_in_time(monkeypatch):
    from tensorplug_ray.serve import running

    ended = []

    def delete(name):
        raise TimeoutError(f"{name} was not deleted")

    monkeypatch.setattr(running._Made, "app", True)
    monkeypatch.setattr(running._Made, "serve", True)
    monkeypatch.setattr(running.ray_serve, "delete", delete)
    monkeypatch.setattr(running.ray_serve, "shutdown", lambda: ended.append("Ray Serve"))
    monkeypatch.setattr(running.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(running.ray, "shutdown", lambda: ended.append("Ray"))

    running.end()

    assert ended == ["Ray Serve", "Ray"]


class Scripted:
    """The handle of replicas that do in order what a script says, each for some seconds."""

    def __init__(self, clock, script):
        self._clock = clock
        self.script = script
        self.answer = SimpleNamespace(remote=self._remote)

    def options(self, stream):
        return self

    async def _remote(self, asked):
        seconds, what = self.script.pop(0)
        self._clock.now += seconds
        if what == "dies":
            raise ray.exceptions.RayActorError
        if what == "failed":
            yield {"type": "tensorplug.failed"}
            return
        yield {"type": "http.response.start", "status": 200, "headers": []}
        yield {"type": "http.response.body", "body": b"text"}


@pytest.mark.parametrize(
    ("script", "status", "left"),
    [
        pytest.param([(70, "dies"), (1, "answers")], 200, 0, id="died after a minute"),
        pytest.param([(70, "failed"), (1, "answers")], 200, 0, id="failed after a minute"),
        pytest.param([(1, "dies")] * 5, 503, 1, id="too many died"),
        pytest.param([(0, "failed"), (61, "failed"), (0, "answers")], 503, 1, id="none comes"),
    ],
)
def test_request_is_asked_again_however_long_an_attempt_computed(monkeypatch, script, status, left):
    from tensorplug_ray.serve import front

    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(front, "time", clock)
    monkeypatch.setattr(front, "PAUSE", 0)
    handle, sent = Scripted(clock, list(script)), []

    async def receive():
        return {"type": "http.request", "body": b"{}"}

    async def send(message):
        sent.append(message)

    asyncio.run(front.Front(handle)({"type": "http"}, receive, send))

    assert sent[0]["status"] == status
    assert len(handle.script) == left


def deploy(url, replica, monkeypatch, file, **settings):
    """Replace the replicas by one of another class, with three texts or other settings."""
    from tensorplug_ray.serve import running
    from tensorplug_ray.serve.replica import Settings

    monkeypatch.setattr(running, "Replica", replica)
    address, port = os.environ.get("RAY_ADDRESS", "local"), int(url.rpartition(":")[2])
    made = Settings(str(file), (CPU,), **{"context": 64, "texts": 3, **settings})
    running.serve(made, replicas=1, address=address, port=port)


@pytest.mark.slow
def test_request_for_an_engine_that_failed_is_answered_by_the_next_replica(
    url, file, monkeypatch, tmp_path
):
    from tensorplug_ray.serve.replica import Replica

    trap = tmp_path / "trap"

    class Failing(Replica):
        async def answer(self, asked):
            if trap.exists():
                trap.unlink()
                self._engine._failure = DeviceLost("cpu: fails as the test planned")
            async for message in super().answer(asked):
                yield message

    wanted = text_of(asked(url, 1))
    deploy(url, Failing, monkeypatch, file)
    (before,) = replicas()
    trap.touch()

    assert text_of(asked(url, 1)) == wanted
    wait_until(lambda: before not in replicas())  # it ends while the next one answers
    assert replicas()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "reason"),
    [(CPU, "FormatError: "), ("attic", "BackendNotFound: attic: no installed")],
    ids=["broken model", "unknown device"],
)
def test_replica_that_does_not_start_ends_the_command_with_one_line(tmp_path, device, reason):
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF" + bytes(60))

    done = subprocess.run(
        [sys.executable, "-m", "tensorplug_ray.serve", str(file), "--device", device],
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("serve: no replica of")]
    assert f"broken.gguf starts on {device}: " in line
    assert reason in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other_port", "reason"),
    [(1, "give --host 127.0.0.1 --port "), (0, "no-model.gguf: No such file")],
    ids=["another port", "no model"],
)
def test_command_that_fails_leaves_what_other_processes_serve(url, file, other_port, reason):
    from ray import serve as ray_serve

    @ray_serve.deployment(ray_actor_options={"num_cpus": 0})
    class Other:
        def answer(self):
            return 7

    handle = ray_serve.run(Other.bind(), name="other", route_prefix="/other")
    port = int(url.rpartition(":")[2])
    address = ray.get_runtime_context().gcs_address
    ray_serve.delete("tensorplug")
    command = [sys.executable, "-m", "tensorplug_ray.serve", "no-model.gguf", "--device", CPU]
    try:
        done = subprocess.run(
            [*command, "--address", address, "--port", str(port + other_port)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        left = set(ray_serve.status().applications)
        answer = handle.answer.remote().result(timeout_s=60)
    finally:
        ray_serve.delete("other")
        serve_two(file, port)

    assert done.returncode == 1
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert left == {"other"}
    assert answer == 7


@pytest.mark.slow
def test_command_answers_until_it_is_asked_to_end_and_leaves_no_process(file):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorplug_ray.serve", str(file), "--device", CPU]
    process = subprocess.Popen(
        [*command, "--context", "64", "--port", str(port)],
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        answer = asked(f"http://127.0.0.1:{port}", 1)
        pids = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=180)
    finally:
        process.kill()

    assert f"http://127.0.0.1:{port}" in line
    assert text_of(answer)
    assert process.returncode == 0
    assert pids
    wait_until(lambda: not any(exists(pid) for pid in pids))


@pytest.mark.slow
def test_replica_that_is_replaced_ends_its_answers_first(url, file, monkeypatch, tmp_path):
    from tensorplug_ray.serve.replica import Replica

    begun, replaced = tmp_path / "begun", tmp_path / "replaced"

    class Paused(Replica):
        async def answer(self, asked):
            number = 0
            async for message in super().answer(asked):
                yield message
                number += 1
                if number == 3:
                    begun.touch()
                    while not replaced.exists():
                        await asyncio.sleep(0.1)

    wanted = text_of(asked(url, 1))
    deploy(url, Paused, monkeypatch, file)
    (before,) = replicas()

    def go_on():
        wait_until(lambda: len(replicas()) == 2)  # the next one starts while this one still answers
        replaced.touch()

    with ThreadPoolExecutor(2) as threads:
        answer = threads.submit(asked, url, 1, stream=True)
        wait_until(begun.exists)
        going_on = threads.submit(go_on)
        deploy(url, Replica, monkeypatch, file, texts=4)
        going_on.result()
        found = streamed(answer.result())

    assert found == wanted
    assert before not in replicas()


@pytest.mark.slow
def test_more_replicas_start_while_requests_wait(url, file):
    from tensorplug_ray.serve.replica import Settings
    from tensorplug_ray.serve.running import serve

    address, port = os.environ.get("RAY_ADDRESS", "local"), int(url.rpartition(":")[2])
    one_text = Settings(str(file), (CPU,), context=64, texts=1)
    serve(one_text, replicas=1, most=3, address=address, port=port)

    until = time.monotonic() + 180
    with ThreadPoolExecutor(9) as pool:
        while len(replicas()) < 3 and time.monotonic() < until:
            assert {status for status, _ in pool.map(partial(asked, url), range(18))} == {200}

    assert len(replicas()) == 3

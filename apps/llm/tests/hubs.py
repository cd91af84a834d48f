"""A stand-in for the Hugging Face Hub: repositories in memory, and faults on order."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Faults:
    """What goes wrong; each field that is a list is used up from its front."""

    cut: list[int] = field(default_factory=list)
    """Bytes after which the connection of a download ends."""
    statuses: list[int] = field(default_factory=list)
    """Statuses of the next downloads."""
    listed: int = 0
    """Added to the size in the list of files."""
    linked: int = 0
    """Added to the size in the headers of a file."""
    sent: int = 0
    """Added to the size that a download names."""
    ranges: bool = True
    damage: bool = False
    """A byte in the middle of a download is wrong."""
    shift: int = 0
    """Added to the first byte of ranges that are answered."""
    api: tuple[int, dict[str, str], bytes] | None = None
    """The answer to requests for lists of files."""
    hash: str | None = None
    """The hash in the headers of a file."""


class Server(ThreadingHTTPServer):
    """Clients that go away in the middle of a download are nothing to write about."""

    def handle_error(self, *_: object) -> None:
        pass


class Hub:
    """Repositories by name, each with its files; `requests` are the ranges that were asked for."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.revisions = {"main": COMMIT, COMMIT: COMMIT, "v1/first": COMMIT}
        self.faults = Faults()
        self.requests: list[tuple[str, str, str | None]] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self, with_body=True)

            def do_HEAD(self) -> None:
                hub.answer(self, with_body=False)

            def log_message(self, *_: object) -> None:
                pass

        hosts = ("127.0.0.1", "127.0.0.2")  # files lie on a host of their own
        self.servers = [Server((host, 0), Handler) for host in hosts]
        self.url, self.store = (
            f"http://{s.server_address[0]}:{s.server_port}" for s in self.servers
        )
        self.keys: list[tuple[str, str | None]] = []
        """Hosts that were asked, and the keys that they were sent."""

    def downloads(self) -> list[str | None]:
        """The ranges of the downloads so far."""
        return [given for verb, path, given in self.requests if verb == "GET" and "/cdn/" in path]

    # --- answers ---------------------------------------------------------------------------------

    def answer(self, to: BaseHTTPRequestHandler, *, with_body: bool) -> None:
        path = to.path.partition("?")[0]
        if path == "/api/agent-harnesses":  # asked by the first request of a process, for no model
            _send(to, 404, {})
            return
        self.requests.append((to.command, to.path, to.headers.get("Range")))
        self.keys.append((to.headers["Host"], to.headers.get("Authorization")))
        if listed := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self._list(to, listed[1], listed[2].replace("%2F", "/"))
        elif placed := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(to, placed[1], placed[3])
        elif stored := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
            self._download(to, self.repos[stored[1]][stored[2]], with_body=with_body)
        else:
            _send(to, 404, {"X-Error-Code": "RepoNotFound"})

    def _list(self, to: BaseHTTPRequestHandler, repo: str, revision: str) -> None:
        if self.faults.api is not None:
            _send(to, *self.faults.api)
        elif repo not in self.repos:
            _send(to, 404, {"X-Error-Code": "RepoNotFound"})
        elif revision not in self.revisions:
            _send(to, 404, {"X-Error-Code": "RevisionNotFound"})
        else:
            siblings = [
                {
                    "rfilename": name,
                    "size": len(data) + self.faults.listed,
                    "blobId": "0" * 40,
                    "lfs": {"size": len(data), "sha256": sha256(data), "pointerSize": 130},
                }
                for name, data in self.repos[repo].items()
            ]
            info = {"id": repo, "sha": self.revisions[revision], "siblings": siblings}
            _send(to, 200, {"Content-Type": "application/json"}, json.dumps(info).encode())

    def _resolve(self, to: BaseHTTPRequestHandler, repo: str, name: str) -> None:
        data = self.repos[repo][name]
        headers = {
            "X-Repo-Commit": COMMIT,
            "X-Linked-Etag": f'"{self.faults.hash or sha256(data)}"',
            "X-Linked-Size": str(len(data) + self.faults.linked),
            "Location": f"{self.store}/cdn/{repo}/{name}",
        }
        _send(to, 302, headers)

    def _download(self, to: BaseHTTPRequestHandler, data: bytes, *, with_body: bool) -> None:
        faults = self.faults
        if with_body and faults.statuses:
            _send(to, faults.statuses.pop(0), {})
            return
        if faults.damage:
            middle = len(data) // 2
            data = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        first, end, status = 0, len(data), 200
        given = re.fullmatch(r"bytes=(\d+)-(\d*)", to.headers.get("Range") or "")
        headers: dict[str, str] = {}
        if given and faults.ranges:
            first, status = int(given[1]), 206
            end = min(end, int(given[2]) + 1) if given[2] else end
            shown = first + faults.shift
            headers["Content-Range"] = f"bytes {shown}-{end - 1}/{len(data) + faults.sent}"
        body = data[first:end]
        headers["Content-Length"] = str(len(body) + (faults.sent if status == 200 else 0))
        to.send_response(status)
        for key, value in headers.items():
            to.send_header(key, value)
        to.end_headers()
        if with_body:
            cut = faults.cut.pop(0) if faults.cut else len(body)
            to.wfile.write(body[:cut])
            to.close_connection = cut < len(body)


def _send(
    to: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes = b""
) -> None:
    to.send_response(status)
    for key, value in {"Content-Length": str(len(body)), **headers}.items():
        to.send_header(key, value)
    to.end_headers()
    if to.command == "GET":
        to.wfile.write(body)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextmanager
def running() -> Iterator[Hub]:
    """A hub that answers."""
    hub = Hub()
    polling = {"poll_interval": 0.02}
    threads = [threading.Thread(target=s.serve_forever, kwargs=polling) for s in hub.servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(hub.servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


def environment(hub: Hub, cache: Any) -> dict[str, str]:
    """Variables by which huggingface_hub uses this hub and its own cache."""
    return {"HF_ENDPOINT": hub.url, "HF_HOME": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1"}

"""The page at `/`: files of the package, sent with a policy that runs no other script."""

import hashlib
from collections.abc import Mapping
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
SCHEDULE_POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""For pages of schedules: their script and style are in them, and no text of a model is."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
FOLDER = "/page/"
INDEX, SCHEDULE = "index.html", "schedule.html"


def headers(policy: str) -> dict[str, str]:
    """Headers of all that a browser shows."""
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",  # ask whether it changed: a newer server has newer files
    }


class StaticFile:
    """One file of the page, read when the server starts."""

    def __init__(self, name: str, data: bytes) -> None:
        self.data = data
        policy = SCHEDULE_POLICY if name == SCHEDULE else POLICY
        self.etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        self.headers = headers(policy) | {"ETag": self.etag}
        self.type = TYPES[name[name.rindex(".") :]]

    async def __call__(self, request: Request) -> Response:
        """The file, or 304 where the browser has it."""
        known = request.headers.get("if-none-match", "")
        if self.etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=304, headers=self.headers)
        return Response(self.data, headers=self.headers, media_type=self.type)


def routes() -> list[Route]:
    """The routes of the page, none of which needs a key: `/` and its parts."""
    files = {FOLDER + name: StaticFile(name, data) for name, data in _files().items()}
    files["/"] = files.pop(FOLDER + INDEX)
    return [Route(path, file.__call__, methods=["GET"]) for path, file in files.items()]


def _files() -> Mapping[str, bytes]:
    folder = resources.files(__package__).joinpath("page")
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}

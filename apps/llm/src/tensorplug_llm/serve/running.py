"""Runs a server on a socket until a signal ends it."""

import socket
import time
from collections.abc import Sequence

import uvicorn

from tensorplug.errors import FormatError, OptionError
from tensorplug_llm.chat import ChatTemplate
from tensorplug_llm.engine import Engine
from tensorplug_llm.model import LanguageModel
from tensorplug_llm.serve.app import Served, Server
from tensorplug_llm.serve.encoders import EncoderModel
from tensorplug_llm.serve.limits import Limits
from tensorplug_llm.serve.logs import log
from tensorplug_llm.serve.prompts import Prompts
from tensorplug_llm.serve.protocol import Protocol

HEADERS = 1 << 15
"""Bytes of the headers of a request."""
BACKLOG = 128
"""Connections that wait to be accepted, all of them at once before the next is looked at."""
IDLE = 30
"""Seconds after which a connection is closed on which no head of a request has come."""


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address; it does not listen yet. Raises OptionError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise OptionError(
            f"serve: cannot listen on {host} port {port}: {error.strerror}; choose another --host "
            "or --port"
        ) from error
    return bound


def served(name: str, model: LanguageModel, engine: Engine) -> Served:
    """A model with its engine, under a name."""
    try:
        template = ChatTemplate.from_metadata(model.file.metadata)
    except FormatError:
        template = None
    prompts = Prompts(model.tokenizer, template, context=engine.context)
    return Served(name, model, engine, prompts, int(time.time()))


def run(
    models: Sequence[Served],
    encoders: Sequence[EncoderModel],
    listening: socket.socket,
    *,
    limits: Limits,
    key: str | None,
    drain: int,
) -> None:
    """Answer requests until SIGINT or SIGTERM; then end the running ones within `drain` s."""
    names = [served.name for served in models] + [encoder.name for encoder in encoders]
    server = Server(models, encoders, limits=limits, key=key)
    config = uvicorn.Config(
        server.app,
        http=Protocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=drain,
        h11_max_incomplete_event_size=HEADERS,
    )
    listening.listen(BACKLOG)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    log(
        "listening",
        url=f"http://{shown}:{port}",
        models=names,
    )
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:  # uvicorn raises the signal again that ended it
        log("closed")

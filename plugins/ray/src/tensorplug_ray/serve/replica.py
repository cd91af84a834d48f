"""`Replica`: one engine with the app's server, as an actor of Ray Serve."""

import asyncio
import os
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from tensorplug.registry.registry import Registry
from tensorplug_llm.engine import Engine
from tensorplug_llm.model import load_model
from tensorplug_llm.models import name_of
from tensorplug_llm.serve.app import Server
from tensorplug_llm.serve.limits import Limits
from tensorplug_llm.serve.running import served

Message = MutableMapping[str, Any]


FAILED = "tensorplug.failed"
"""The type of the message in place of an answer where the engine failed on an earlier request."""


class Asked(NamedTuple):
    """A request of HTTP."""

    scope: Message
    body: bytes


class Settings(NamedTuple):
    """What every replica opens and serves."""

    model: str
    devices: Sequence[str] = ("best",)
    context: int | None = None
    texts: int = 32
    queue: int = 256
    key: str | None = None


class Replica:
    """Loads a model and answers requests; Ray Serve makes, watches and ends it."""

    def __init__(self, settings: Settings) -> None:
        # Ray's settings are inherited: a device of a replica is not another actor.
        os.environ["TENSORPLUG_DISABLE"] = "ray"
        self._open = ExitStack()
        registry = Registry()
        streams = [self._open.enter_context(registry.open(spec)) for spec in settings.devices]
        model = self._open.enter_context(load_model(settings.model, streams))
        self._engine = self._open.enter_context(
            Engine(model, context=settings.context, texts=settings.texts, queue=settings.queue)
        )
        self._engine.prepare()
        name = name_of(settings.model)
        limits = Limits(open=settings.texts + settings.queue)
        self._app = Server([served(name, model, self._engine)], limits=limits, key=settings.key).app

    def check_health(self) -> None:
        """Raise RuntimeError if the engine has failed: Ray Serve starts another replica then.

        A new error each time, without the one that ended the engine: that one belongs to the texts,
        and Ray's controller need not know its class.
        """
        if self._engine.failure is not None:
            raise RuntimeError(f"unhealthy: the engine failed: {self._engine.failure}")

    async def answer(self, asked: Asked) -> AsyncIterator[Message]:
        """The messages of the app's answer, as ASGI sends them.

        With an engine that has failed it is one message, FAILED: the front asks another replica.
        """
        if self._engine.failure is not None:
            yield {"type": FAILED}
            return
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        gone, body = asyncio.Event(), [asked.body]

        async def receive() -> Message:
            if body:
                return {"type": "http.request", "body": body.pop(), "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            await messages.put(message)

        async def run() -> None:
            try:
                await self._app(asked.scope, receive, send)
            finally:
                await messages.put(None)

        running = asyncio.create_task(run())
        try:
            while (message := await messages.get()) is not None:
                yield message
            await running
        finally:
            gone.set()

    def __del__(self) -> None:
        """End the engine; Ray Serve calls this after the last request."""
        self._open.close()

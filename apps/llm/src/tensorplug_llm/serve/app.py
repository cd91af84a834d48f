"""The routes of the server, over models that are loaded."""

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from tensorplug_llm.engine import Engine
from tensorplug_llm.model import LanguageModel
from tensorplug_llm.sampling import MOST_CONSTRAINT, SamplingParams
from tensorplug_llm.serve import answers, page, requests
from tensorplug_llm.serve.answers import ChatAnswer, CompletionAnswer, Result
from tensorplug_llm.serve.calls import CallReader
from tensorplug_llm.serve.encoders import EncoderModel, Encoders
from tensorplug_llm.serve.errors import ServeError
from tensorplug_llm.serve.events import EventStream, unless_gone
from tensorplug_llm.serve.guard import RECORD, Guard, Record, log_failure, refusal_of
from tensorplug_llm.serve.limits import Key, Limits
from tensorplug_llm.serve.memory import Room
from tensorplug_llm.serve.metrics import Metrics
from tensorplug_llm.serve.prompts import Prompts
from tensorplug_llm.serve.reading import find_model, read_object
from tensorplug_llm.serve.texts import Piece, Texts
from tensorplug_llm.serve.tools import Tools
from tensorplug_llm.stream import Stream

Answer = ChatAnswer | CompletionAnswer
MODELS = "/v1/models"
SCHEMAS = 2 * MOST_CONSTRAINT
"""Characters of the schemas and grammars that are followed at once; further ones wait."""


@dataclass(slots=True)
class Served:
    """A model that answers under a name."""

    name: str
    model: LanguageModel
    engine: Engine
    prompts: Prompts
    created: int


class Server:
    """Answers requests for models; `app` is what a server of ASGI runs."""

    def __init__(
        self,
        models: Sequence[Served],
        encoders: Sequence[EncoderModel] = (),
        *,
        limits: Limits | None = None,
        key: str | None = None,
    ) -> None:
        """The first model, and the first encoder, answer requests that name none."""
        self._models = {served.name: served for served in models}
        self._limits = limits or Limits()
        self._encoders = Encoders(encoders, self._limits)
        self._metrics = Metrics()
        self._schemas = Room(SCHEMAS)
        self._compiling = asyncio.Lock()
        routes = Router(
            [
                *page.routes(),
                Route("/schedule", self._schedule),
                Route("/health", self._health),
                Route("/metrics", self._show_metrics),
                Route("/props", self._props),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route(MODELS, self._list),
                Route(f"{MODELS}/{{name}}", self._describe),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._complete, methods=["POST"]),
                *self._encoders.routes(),
            ],
            redirect_slashes=False,
        )
        self.app: ASGIApp = Guard(
            _with_app(routes), limits=self._limits, key=Key(key), metrics=self._metrics
        )

    # --- what is served ----------------------------------------------------------------------

    async def _health(self, request: Request) -> Response:
        models = self._models.values()
        failures: dict[str, BaseException | None] = {s.name: s.engine.failure for s in models}
        failures |= {s.name: s.failure for s in self._encoders.models.values()}
        failed = {name: type(error).__name__ for name, error in failures.items() if error}
        if failed:
            return JSONResponse({"status": "failed", "models": failed}, 503)
        lost = {s.name: s.engine.lost for s in models if s.engine.lost}
        if lost:
            return JSONResponse({"status": "degraded", "lost": lost})
        return JSONResponse({"status": "ok"})

    async def _show_metrics(self, request: Request) -> Response:
        for served in self._models.values():
            load = served.engine.load
            self._metrics.running.labels(served.name).set(load.running)
            self._metrics.waiting.labels(served.name).set(load.waiting)
            self._metrics.pages.labels(served.name).set(load.pages)
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def _props(self, request: Request) -> Response:
        served = self._find(request.query_params.get("model"))
        template = served.prompts.template
        defaults = asdict(SamplingParams())
        return JSONResponse(
            {
                "model": served.name,
                "architecture": served.model.hparams.architecture,
                "context": served.engine.context,
                "vocabulary": served.model.tokenizer.vocab_size,
                "devices": [backend.name for backend in served.model.backends],
                "chat_template": None if template is None else template.source,
                "defaults": {k: v for k, v in defaults.items() if v not in (None, (), {})},
                "limits": asdict(self._limits),
            }
        )

    async def _schedule(self, request: Request) -> Response:
        served = self._find(request.query_params.get("model"))
        told = await asyncio.to_thread(served.engine.explain)
        if told is None:
            raise ServeError(404, "schedule: nothing has run yet; send a message first")
        html = await asyncio.to_thread(told.to_html, f"One token of {served.name}")
        return HTMLResponse(html, headers=page.headers(page.SCHEDULE_POLICY))

    async def _list(self, request: Request) -> Response:
        return JSONResponse(
            {"object": "list", "data": [_description(s) for s in self._listed().values()]}
        )

    async def _describe(self, request: Request) -> Response:
        name = request.path_params["name"]
        request.scope[RECORD].route = f"{MODELS}/{{name}}"
        return JSONResponse(_description(self._encoders.models.get(name) or self._find(name)))

    def _listed(self) -> Mapping[str, Served | EncoderModel]:
        return {**self._models, **self._encoders.models}

    async def _tokenize(self, request: Request) -> Response:
        wanted = requests.tokenize_request(await self._body(request))
        served = self._find(wanted.model)
        ids = await asyncio.to_thread(
            served.prompts.text, wanted.text, add_special=wanted.add_special
        )
        return JSONResponse({"tokens": ids})

    # --- what is generated -------------------------------------------------------------------

    async def _chat(self, request: Request) -> Response | EventStream:
        wanted = requests.chat_request(await self._body(request))
        served = self._find(wanted.model)
        prompts, tools = served.prompts, wanted.tools
        prompt = await asyncio.to_thread(prompts.chat, wanted.messages, tools)
        params = requests.limited(wanted, self._limits.tokens)
        if tools is not None and (grammar := prompts.grammar(tools)) is not None:
            params = replace(params, grammar=grammar)
        head = self._head(ChatAnswer, "chatcmpl", served, params)
        wanted = replace(wanted, params=params)
        return await self._generate(request, served, [prompt], wanted, head)

    async def _complete(self, request: Request) -> Response | EventStream:
        wanted = requests.completion_request(await self._body(request))
        served = self._find(wanted.model)
        params = requests.limited(wanted, self._limits.tokens)
        prompts = [
            await asyncio.to_thread(served.prompts.text, prompt)
            if isinstance(prompt, str)
            else list(prompt)
            for prompt in wanted.prompts
        ]
        head = self._head(CompletionAnswer, "cmpl", served, params)
        wanted = replace(wanted, params=params)
        return await self._generate(request, served, prompts, wanted, head)

    async def _generate(
        self,
        request: Request,
        served: Served,
        prompts: Sequence[Sequence[int]],
        wanted: requests.Wanted,
        head: Answer,
    ) -> Response | EventStream:
        record: Record = request.scope[RECORD]
        record.model = served.name
        record.prompt_tokens = sum(map(len, prompts))
        tools = wanted.tools if isinstance(wanted, requests.ChatRequest) else None
        schema = len(wanted.params.constraint)
        if schema:
            await unless_gone(request.receive, self._schemas.take(schema))
        try:
            # In a thread: a schema is compiled here, which takes seconds in the worst case. One at
            # a time, so that threads are left to the other requests.
            async with self._compiling if schema else nullcontext():
                streams = await asyncio.to_thread(_submit, served, prompts, wanted.params, tools)
        except BaseException:
            self._schemas.give(schema)
            raise
        self._metrics.prompt_tokens.labels(served.name).inc(record.prompt_tokens)
        readers = partial(_call_reader, served, tools) if tools else None
        texts = Texts(streams, readers)

        def close() -> None:
            texts.cancel()
            self._schemas.give(schema)
            record.tokens = texts.tokens
            self._count(served, record, streams)

        if wanted.stream:
            events = _events(texts, head, wanted, served, record.prompt_tokens)
            return EventStream(events, close, self._limits.seconds)
        try:
            results = await unless_gone(request.receive, _results(texts))
        finally:
            close()
        used = answers.usage(record.prompt_tokens, texts.tokens)
        return JSONResponse(head.whole(results, used))

    # --- parts -------------------------------------------------------------------------------

    async def _body(self, request: Request) -> dict[str, Any]:
        return await read_object(request.stream(), self._limits)

    def _find(self, name: str | None) -> Served:
        none = "none: the models of this server embed texts"
        return find_model(self._models, name, "is not served here; choose", none)

    def _head(
        self, kind: Callable[..., Answer], prefix: str, served: Served, params: SamplingParams
    ) -> Answer:
        return kind(
            id=f"{prefix}-{secrets.token_hex(12)}",
            created=int(time.time()),
            model=served.name,
            tokenizer=served.model.tokenizer,
            logprobs=params.logprobs is not None,
        )

    def _count(self, served: Served, record: Record, streams: Sequence[Stream]) -> None:
        metrics, name = self._metrics, served.name
        metrics.tokens.labels(name).inc(record.tokens)
        for stream in streams:
            times = list(stream.times)
            if times:
                metrics.first_token.labels(name).observe(times[0] - stream.submitted)
            between = metrics.between_tokens.labels(name)
            for before, after in itertools.pairwise(times):
                between.observe(after - before)


async def _results(texts: Texts) -> list[Result]:
    results = [Result() for _ in texts.streams]
    async for piece in texts:
        results[piece.index].add(piece)
    return results


async def _events(
    texts: Texts, head: Answer, wanted: requests.Wanted, served: Served, prompt_tokens: int
) -> AsyncIterator[bytes]:
    """The events of an answer; an error is the last one."""
    begun: set[int] = set()
    try:
        async for piece in texts:
            if piece.index not in begun:
                begun.add(piece.index)
                if (first := head.first(piece.index)) is not None:
                    yield answers.event(first)
            if _says_something(piece, head):
                yield answers.event(head.part(piece))
    except Exception as error:  # noqa: BLE001 - the status was sent: it becomes an event
        refusal = refusal_of(error)
        if refusal.status >= 500:
            log_failure("failure", error, model=served.name)
        yield answers.event(refusal.body())
        return
    if wanted.include_usage:
        yield answers.event(head.last(answers.usage(prompt_tokens, texts.tokens)))
    yield answers.DONE


def _says_something(piece: Piece, head: Answer) -> bool:
    return bool(piece.text or piece.finish or piece.calls or (head.logprobs and piece.sampled))


def _submit(
    served: Served,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    tools: Tools | None,
) -> list[Stream]:
    """Submit all results of all prompts, or none."""
    shown = served.prompts.shown() if tools else frozenset()
    return served.engine.submit_all(prompts, params, shown=shown)


def _call_reader(served: Served, tools: Tools) -> CallReader:
    assert served.prompts.form is not None, "the prompt was written with a form of calls"
    schemas = {tool.name: tool.parameters for tool in tools.tools}
    return CallReader(served.prompts.form, schemas, parallel=tools.parallel)


def _description(served: Served | EncoderModel) -> Mapping[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "tensorplug-llm",
    }


def _with_app(routes: ASGIApp) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = routes  # so that wrong methods raise instead of answering with a text
        await routes(scope, receive, send)

    return app

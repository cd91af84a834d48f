"""`serve`: an HTTP server for models."""

import logging
from contextlib import ExitStack
from typing import Annotated

import typer

from tensorplug.errors import OptionError
from tensorplug_llm.cli.loading import context_wanted, loaded
from tensorplug_llm.cli.options import MODEL, Failing, Loading, Remembering, with_groups
from tensorplug_llm.cli.output import reporting
from tensorplug_llm.engine import CONTEXTS, Engine
from tensorplug_llm.model import AUTO
from tensorplug_llm.models import name_of
from tensorplug_llm.serve import logs
from tensorplug_llm.serve.limits import Limits, check_exposure

LIMITS = Limits()
PAUSE = 0.05
"""Seconds that a text may stop between two tokens while prompts of other requests are read."""


@with_groups
def serve(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help=f"{MODEL} The first one answers by default."),
    ],
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8080,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="TENSORPLUG_LLM_API_KEY", help="Requests must bring this key, as a bearer token."
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Serve other machines without a key.")
    ] = False,
    texts: Annotated[int, typer.Option(min=1, help="Texts generated at the same time.")] = 32,
    queue: Annotated[
        int, typer.Option(min=1, help="Texts that may wait; more are refused with 429.")
    ] = 256,
    groups: Annotated[
        int,
        typer.Option(min=1, help="Groups of texts that follow each other through remote devices."),
    ] = 1,
    cache: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of all texts in the KV cache; default: two contexts."),
    ] = None,
    max_open: Annotated[
        int, typer.Option(min=1, help="Requests answered at the same time.")
    ] = LIMITS.open,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = LIMITS.body,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Largest max_tokens of a request.")
    ] = LIMITS.tokens,
    drain: Annotated[
        int, typer.Option(min=0, help="Seconds that running requests have after SIGTERM.")
    ] = 30,
    remembering: Remembering,
    loading: Loading,
    failing: Failing,
) -> None:
    """Serve models over HTTP, as OpenAI's API does. Models made to embed texts do only that."""
    with reporting(traceback=failing.traceback), ExitStack() as stack:
        check_exposure(host, key=api_key, insecure=insecure)
        try:
            from tensorplug_llm.serve import encoders, running  # noqa: PLC0415 - of an extra
        except ImportError as error:
            raise OptionError(
                f"serve: a library is missing ({error}); run: pip install 'tensorplug-llm[serve]'"
            ) from error
        logs.write_logs()
        names = [name_of(model) for model in models]
        if len({*names}) < len(names):
            raise OptionError(f"serve: two models are called alike: {', '.join(names)}; rename one")
        listening = stack.enter_context(running.bound(host, port))
        served, embedding = [], []
        for name, model in zip(names, models, strict=True):
            found = stack.enter_context(
                loaded(model, loading, remembering, texts=texts, contexts=CONTEXTS, rows=cache)
            )
            if found.embeds:
                _tell_context(name, remembering.context, found.hparams.context)
                encoder = encoders.EncoderModel(name, found)
                stack.callback(encoder.close)
                embedding.append(encoder)
                continue
            engine = Engine(
                found,
                rows=cache,
                texts=texts,
                queue=queue,
                kv=remembering.kv_type,
                on_failure=remembering.on_failure,
                prompt_lookup=remembering.prompt_lookup,
                groups=groups,
                pause=PAUSE,
            )
            stack.enter_context(engine)
            engine.prepare()
            served.append(running.served(name, found, engine))
        limits = Limits(body=max_body, tokens=max_tokens, open=max_open)
        running.run(served, embedding, listening, limits=limits, key=api_key, drain=drain)


def _tell_context(name: str, asked: str | None, trained: int) -> None:
    """Warn where a model that embeds reads fewer tokens than `--context` says."""
    wanted = context_wanted(asked)
    if wanted is not None and wanted != AUTO and wanted > trained:
        logs.log("context", level=logging.WARNING, model=name, asked=wanted, trained=trained)

"""Plugin of `llm`: the models of a running `tensorplug-llm serve`, as `tensorplug/NAME`."""

import os
from collections.abc import Callable
from typing import Any

import click
import httpx2
import llm
from llm.default_plugins.openai_models import AsyncChat, Chat
from pydantic import Field

ALIAS = "tensorplug"
"""Name of the key in `llm keys`, and beginning of the names of models."""
KEY_VARIABLE = "TENSORPLUG_LLM_API_KEY"
URL_VARIABLE = "TENSORPLUG_LLM_URL"
URL = "http://127.0.0.1:8080"
PATIENCE = 5.0
"""Seconds in which a server must list its models: each command of `llm` asks for them."""
NO_KEY = "none"
"""Sent to servers without a key: the client of OpenAI's API demands one."""
NO_LIST = (httpx2.HTTPError, httpx2.InvalidURL, ValueError, KeyError, TypeError)
"""What `served` raises where there is no server, or something else answers."""
OWN = ("top_k", "min_p", "typical_p", "repeat_penalty", "repeat_last_n")
"""Options that OpenAI's API does not have."""


class Options(llm.Options):
    """The server's parameters of sampling; what is left out has the server's default."""

    temperature: float | None = Field(None, ge=0, description="0 takes the most likely token")
    max_tokens: int | None = Field(None, ge=1, description="Largest number of tokens")
    top_p: float | None = Field(None, ge=0, le=1, description="Nucleus sampling")
    top_k: int | None = Field(None, ge=0, description="Keep this many likely tokens; 0 keeps all")
    min_p: float | None = Field(None, ge=0, le=1, description="Least share of the best probability")
    typical_p: float | None = Field(None, ge=0, le=1, description="Typical sampling")
    repeat_penalty: float | None = Field(None, gt=0, description="Divides logits of recent tokens")
    repeat_last_n: int | None = Field(None, ge=-1, description="Tokens that count as recent")
    presence_penalty: float | None = Field(None, description="Subtracted for a recent token")
    frequency_penalty: float | None = Field(None, description="Subtracted per occurrence")
    seed: int | None = Field(None, description="Equal seeds choose equal tokens")
    stop: str | None = Field(None, description="End the text before this string")


class _Served:
    """What models of a server have beyond those of OpenAI's API."""

    needs_key = ALIAS
    Options = Options

    def __init__(self, name: str) -> None:
        super().__init__(  # type: ignore[call-arg]  # of the second base class
            f"{ALIAS}/{name}",
            model_name=name,
            api_base=f"{server()}/v1",
            supports_schema=True,
            supports_tools=True,
        )

    def get_key(self, explicit_key: str | None = None) -> str:
        return key(explicit_key)

    def build_kwargs(self, prompt: llm.Prompt, stream: bool) -> dict[str, Any]:  # noqa: FBT001 - as called
        kwargs: dict[str, Any] = super().build_kwargs(prompt, stream)  # type: ignore[misc]
        kwargs["extra_body"] = {name: kwargs.pop(name) for name in OWN if name in kwargs}
        return kwargs

    def __str__(self) -> str:
        return f"tensorplug-llm: {self.model_id}"  # type: ignore[attr-defined]


class ServedModel(_Served, Chat):
    """A model that a server has."""


class AsyncServedModel(_Served, AsyncChat):
    """The same for asyncio."""


def server() -> str:
    """Where the server is."""
    return os.environ.get(URL_VARIABLE, URL).rstrip("/")


def key(explicit: str | None = None) -> str:
    """The server's key, if one is known."""
    return llm.get_key(input=explicit, alias=ALIAS, env=KEY_VARIABLE) or NO_KEY


def served() -> list[str]:
    """Names of the server's models. Raises one of `NO_LIST`."""
    headers = {"Authorization": f"Bearer {key()}"}
    answer = httpx2.get(f"{server()}/v1/models", headers=headers, timeout=PATIENCE)
    answer.raise_for_status()
    return [model["id"] for model in answer.json()["data"]]


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Name the models of the server; none where no server answers."""
    try:
        names = served()
    except NO_LIST:
        return  # `llm tensorplug` says why
    for name in names:
        register(ServedModel(name), AsyncServedModel(name))


@llm.hookimpl
def register_commands(cli: click.Group) -> None:
    """Add `llm tensorplug`."""

    @cli.command(name=ALIAS)
    def tensorplug() -> None:
        """List the models of the tensorplug-llm server, or say why there are none."""
        try:
            names = served()
        except NO_LIST as error:
            raise click.ClickException(
                f"{server()}: {error}; start `tensorplug-llm serve MODEL`, name another address in "
                f"{URL_VARIABLE}, or set the key with `llm keys set {ALIAS}`"
            ) from error
        for name in names:
            click.echo(f"{ALIAS}/{name}")

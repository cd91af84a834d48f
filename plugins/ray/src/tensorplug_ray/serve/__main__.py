"""`python -m tensorplug_ray.serve MODEL --replicas N`."""

import signal
from typing import Annotated

import typer

from tensorplug.errors import OptionError, TensorplugError
from tensorplug_ray import config


def main(  # noqa: PLR0913 - options of a command
    model: Annotated[str, typer.Argument(help="A GGUF file, or a name that tensorplug-llm knows.")],
    *,
    replicas: Annotated[int, typer.Option(min=1, help="Engines, each with its own devices.")] = 1,
    most: Annotated[
        int | None, typer.Option(min=1, help="Start more replicas under load, up to this number.")
    ] = None,
    device: Annotated[
        list[str], typer.Option(help="What each replica opens; may be given several times.")
    ] = ["best"],  # noqa: B006 - typer copies it
    gpus: Annotated[float, typer.Option(min=0, help="GPUs that each replica reserves.")] = 0,
    address: Annotated[
        str, typer.Option(envvar=config.ADDRESS, help="The cluster; local starts one here.")
    ] = config.OWN,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8080,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="TENSORPLUG_LLM_API_KEY", help="Requests must bring this key."),
    ] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens of a text.")] = None,
    texts: Annotated[int, typer.Option(min=1, help="Texts of a replica at the same time.")] = 32,
    queue: Annotated[int, typer.Option(min=1, help="Texts that may wait at a replica.")] = 256,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow clusters without a token, and hosts without a key."),
    ] = False,
) -> None:
    """Serve a model by replicas on Ray Serve, behind one address, as OpenAI's API does."""
    try:
        from tensorplug_llm.serve.limits import check_exposure  # noqa: PLC0415 - of an extra
        from tensorplug_ray.serve.replica import Settings  # noqa: PLC0415
        from tensorplug_ray.serve.running import end, serve  # noqa: PLC0415
    except ImportError as error:
        typer.echo(
            f"serve: a library is missing ({error}); run: pip install 'tensorplug-ray[serve]'",
            err=True,
        )
        raise typer.Exit(2) from error
    try:
        check_exposure(host, key=api_key, insecure=insecure)
        if most is not None and most < replicas:
            raise OptionError(f"serve: --most {most} is less than --replicas {replicas}")
        settings = Settings(model, tuple(device), context, texts, queue, api_key)
        serve(
            settings,
            replicas=replicas,
            most=most,
            address=address,
            host=host,
            port=port,
            insecure=insecure,
            resources={"num_gpus": gpus} if gpus else None,
        )
        typer.echo(f"listening on http://{host}:{port}")
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    except TensorplugError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    finally:
        end()


if __name__ == "__main__":
    typer.run(main)

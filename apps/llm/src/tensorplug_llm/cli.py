"""`tensorplug-llm`: generate text, measure speed and perplexity."""

import gc
import io
import json
import sys
import traceback as tracebacks
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from tqdm import tqdm  # type: ignore[import-untyped]  # ships no types

import tensorplug as tp
from tensorplug import Backend, SupportsThreads
from tensorplug.errors import OptionError, TensorplugError
from tensorplug.gguf import WeightMode
from tensorplug.inspect import graphfile
from tensorplug.text import printable
from tensorplug_llm.bench import bench as measure_speed
from tensorplug_llm.bench import device_names, thread_count
from tensorplug_llm.chat import ChatTemplate, encode_chat
from tensorplug_llm.generation import Generation
from tensorplug_llm.model import LanguageModel, Split, load_model
from tensorplug_llm.models import MODELS, find_model
from tensorplug_llm.perplexity import WINDOW
from tensorplug_llm.perplexity import perplexity as measure_perplexity
from tensorplug_llm.sampling import Sampler, SamplingParams
from tensorplug_llm.tokenizer import StreamDecoder

app = typer.Typer(
    help="Generate text from GGUF language models, and measure how well and how fast.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

INTERRUPTED = 130
BAR_DELAY = 1.0
"""Seconds after which a progress bar appears."""
MOST_TEXT = 256 << 20
"""Bytes of the longest text that perplexity is measured on."""
N = TypeVar("N", int, float)
KV_TYPES = {"f16": tp.F16, "f32": tp.F32}

Model = Annotated[str, typer.Argument(help=f"Path of a GGUF file, or {' or '.join(MODELS)}.")]
Devices = Annotated[
    list[str] | None,
    typer.Option("--device", help="Device such as cpu or opencl:0; repeat for several."),
]
Layers = Annotated[
    str | None,
    typer.Option(help="Layers for each device, such as 10,20; by free memory without it."),
]
Splits = Annotated[
    Split, typer.Option("--split", help="Devices take layers, or parts of every layer (tensor).")
]
Ratio = Annotated[
    str | None,
    typer.Option(help="With --split tensor, the part of each device, such as 3,1; else even."),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of devices that have such.")]
Weights = Annotated[
    WeightMode,
    typer.Option(
        help="Expanded to f32, packed for the device's kernels, or as they lie in the file."
    ),
]
Context = Annotated[int | None, typer.Option(min=1, help="Most tokens of prompt and text.")]
Kv = Annotated[str | None, typer.Option("--kv", help="Type of the attention cache: f16 or f32.")]
OnFailure = Annotated[
    str, typer.Option(help="Where a device fails: raise, or replan on the devices that are left.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Traceback = Annotated[bool, typer.Option("--traceback", help="Show where an error came from.")]


@contextmanager
def reporting(*, traceback: bool) -> Iterator[None]:
    """Turn our errors into one paragraph on stderr and exit code 1."""
    try:
        yield
    except (TensorplugError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # typer ends quietly where a pipe does
            raise
        if traceback:
            tracebacks.print_exc()
        else:
            typer.echo(f"tensorplug-llm: {printable(str(error))}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@app.command()
def generate(  # noqa: PLR0913 - a parameter for each switch
    model: Model,
    prompt: Annotated[str, typer.Option(help="Text to continue, or to answer with --chat.")],
    *,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens to generate.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Choose among so many; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Choose among the likeliest of this sum.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Leave out what is so much less likely.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Equal seeds choose equal tokens.")] = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat",
            help="Answer by the chat template. Texts of control tokens in the prompt, such as "
            "<|im_end|>, count as these tokens.",
        ),
    ] = False,
    device: Devices = None,
    layers: Layers = None,
    split: Splits = Split.LAYER,
    ratio: Ratio = None,
    threads: Threads = None,
    weights: Weights = WeightMode.AUTO,
    context: Context = None,
    kv: Kv = None,
    on_failure: OnFailure = "raise",
    save_graph: Annotated[
        Path | None,
        typer.Option(
            "--save-graph", help="Write the graph of a token, for `tensorplug explain FILE`."
        ),
    ] = None,
    as_json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Continue a prompt."""
    with (
        reporting(traceback=traceback),
        _loaded(model, device, (layers, split, ratio), threads, weights) as loaded,
        loaded.session(context, kv=_kv_type(kv), on_failure=on_failure) as session,
    ):
        sampler = Sampler(
            SamplingParams(
                temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed
            )
        )
        ids = _prompt_ids(loaded, prompt, chat=chat)
        generation = Generation(session, ids, tokens=tokens, sampler=sampler)
        session.check(ids)
        if save_graph is not None:
            graphfile.save(session.decode_graph(), save_graph)
        if not as_json and not chat:
            _write(prompt)
        text = _stream(loaded, generation, show=not as_json)
        if as_json:
            typer.echo(json.dumps(_report(generation, text), ensure_ascii=False))
        else:
            typer.echo()
            _summarise(loaded, generation)


@app.command()
def bench(  # noqa: PLR0913 - a parameter for each switch
    model: Model,
    *,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 512,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens to generate.")] = 128,
    repeat: Annotated[int, typer.Option(min=1, help="Timed runs of each series.")] = 5,
    device: Devices = None,
    layers: Layers = None,
    split: Splits = Split.LAYER,
    ratio: Ratio = None,
    threads: Threads = None,
    weights: Weights = WeightMode.AUTO,
    as_json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Measure how fast a model reads prompts and generates text."""
    with (
        reporting(traceback=traceback),
        _loaded(model, device, (layers, split, ratio), threads, weights) as loaded,
    ):
        report = measure_speed(loaded, prompt_tokens=prompt_tokens, tokens=tokens, repeat=repeat)
        typer.echo(json.dumps(asdict(report)) if as_json else report)


@app.command()
def perplexity(  # noqa: PLR0913 - a parameter for each switch
    model: Model,
    file: Annotated[Path, typer.Argument(help="A text in UTF-8.")],
    *,
    window: Annotated[int, typer.Option(min=4, help="Tokens read at a time.")] = WINDOW,
    device: Devices = None,
    layers: Layers = None,
    split: Splits = Split.LAYER,
    ratio: Ratio = None,
    threads: Threads = None,
    weights: Weights = WeightMode.AUTO,
    as_json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Measure how well a model predicts a text."""
    with (
        reporting(traceback=traceback),
        _loaded(model, device, (layers, split, ratio), threads, weights) as loaded,
        progress_bar("windows", "") as bar,
    ):
        text = _read_text(file)
        report = measure_perplexity(loaded, text, window=window, progress=bar)
        typer.echo(json.dumps(asdict(report)) if as_json else report)


# --- parts of the commands -----------------------------------------------------------------------


@contextmanager
def _loaded(
    model: str,
    device: list[str] | None,
    shares: tuple[str | None, Split, str | None],
    threads: int | None,
    weights: WeightMode,
) -> Iterator[LanguageModel]:
    """A model on opened devices; both are closed afterwards.

    `shares` are the options --layers, --split and --ratio.
    """
    layers, split, ratio = shares
    counts = _numbers("--layers", layers, int, "10,20")
    parts = _numbers("--ratio", ratio, float, "3,1")
    with progress_bar("assembling") as bar:
        path = find_model(model, bar)
    tp.load_all()
    backends: list[Backend] = []
    try:
        backends.extend(tp.open(spec) for spec in device or ["best"])
        _set_threads(backends, threads)
        # What start-up made stays: walking through it takes a collection 30 ms.
        gc.freeze()
        with progress_bar("loading") as bar:
            loaded = load_model(
                path,
                backends,
                layers=counts,
                split=split,
                ratio=parts,
                weights=weights,
                progress=bar,
            )
        with loaded:
            yield loaded
    finally:
        for backend in backends:
            backend.close(force=True)


def _numbers(option: str, text: str | None, kind: type[N], example: str) -> list[N] | None:
    if text is None:
        return None
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(
            f"{option}: {text!r} is no list of numbers; give one for each device, such as {example}"
        ) from None


def _set_threads(backends: list[Backend], threads: int | None) -> None:
    if threads is None:
        return
    able = [backend for backend in backends if isinstance(backend, SupportsThreads)]
    if not able:
        names = ", ".join(backend.name for backend in backends)
        raise OptionError(f"--threads: {names} has no threads to set; leave the option out")
    for backend in able:
        backend.threads = threads


def _kv_type(name: str | None) -> tp.DType | None:
    if name is None:
        return None
    if name not in KV_TYPES:
        raise OptionError(f"--kv: {name!r} is no type of the cache; choose {' or '.join(KV_TYPES)}")
    return KV_TYPES[name]


def _prompt_ids(model: LanguageModel, prompt: str, *, chat: bool) -> list[int]:
    if not chat:
        return model.tokenizer.encode(prompt)
    template = ChatTemplate.from_metadata(model.file.metadata)
    return encode_chat(model.tokenizer, template, [{"role": "user", "content": prompt}])


def _stream(model: LanguageModel, generation: Generation, *, show: bool) -> str:
    """Generate; print the text as it comes. Returns all of it."""
    decoder = model.tokenizer.stream()
    text = ""
    for piece in _pieces(generation, decoder):
        text += piece
        if show and piece:
            _write(piece)
    return text


def _write(text: str) -> None:
    """Print text of a model at once, to a terminal without control characters."""
    typer.echo(printable(text) if sys.stdout.isatty() else text, nl=False)
    sys.stdout.flush()


def _pieces(generation: Generation, decoder: StreamDecoder) -> Iterator[str]:
    for id in generation:
        yield decoder.feed(id)
    yield decoder.finish()


def _report(generation: Generation, text: str) -> dict[str, object]:
    return {
        "prompt_ids": generation.prompt,
        "ids": generation.ids,
        "text": text,
        "finish": generation.finish,
        "timings": asdict(generation.timings),
    }


def _summarise(model: LanguageModel, generation: Generation) -> None:
    t = generation.timings
    typer.echo(
        f"[{t.prompt_tokens} prompt tokens in {t.prefill_s:.2f} s, {t.generated_tokens} tokens at "
        f"{t.decode_tokens_per_s:.1f} per second; {device_names(model)}, "
        f"{thread_count(model.backends)} threads; loaded in {t.load_s:.2f} s]",
        err=True,
    )


def _read_text(file: Path) -> str:
    try:
        with file.open("rb") as source:
            raw = source.read(MOST_TEXT + 1)
        if len(raw) > MOST_TEXT:
            raise OptionError(
                f"{file}: has more than {MOST_TEXT} bytes; give a shorter text: the first million "
                "bytes tell as much"
            )
        return raw.decode()
    except OSError as error:
        raise OptionError(f"{file}: {error.strerror}; give the path of a text") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"{file}: is no text in UTF-8 ({error.reason}); convert it") from error


@contextmanager
def progress_bar(what: str, unit: str = "B") -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, if that is a terminal; call it with what is done, of how much.

    It appears after BAR_DELAY seconds, so that short work leaves the terminal as it is.
    """
    scaled = {"unit": unit, "unit_scale": True, "unit_divisor": 1024} if unit else {}
    hidden = not sys.stderr.isatty()
    with tqdm(desc=what, leave=False, disable=hidden, delay=BAR_DELAY, **scaled) as bar:

        def update(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield update


def main() -> None:
    """Entry point of the console script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal may know fewer characters than a model.
        sys.stdout.reconfigure(errors="replace")
    app()

"""`chat`: a conversation with a model on the terminal."""

import io
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensorplug.errors import OptionError, TensorplugError
from tensorplug.text import printable
from tensorplug_llm.cli.generating import params_of
from tensorplug_llm.cli.loading import loaded
from tensorplug_llm.cli.options import Choosing, Failing, Loading, Model, Remembering, with_groups
from tensorplug_llm.cli.output import reporting, write
from tensorplug_llm.engine import Engine
from tensorplug_llm.sampling import SamplingParams

if TYPE_CHECKING:
    from tensorplug_llm.chat import ChatTemplate

Message = Mapping[str, Any]
PROMPT = "> "
HELP = """\
/help          these commands
/clear         begin a new conversation
/undo          forget the last question and its answer
/retry         answer the last question again
/system TEXT   begin a new conversation with an instruction
/history       the conversation so far
/save FILE     write the conversation as text
/quit          end, as Ctrl-D does
Ctrl-C stops an answer."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C was pressed. Other signals end the program."""


class Ended(Exception):
    """The conversation is over."""


@dataclass(slots=True)
class Conversation:
    """Messages so far, and how the model answers them."""

    engine: Engine
    template: "ChatTemplate"
    params: SamplingParams
    messages: list[Message] = field(default_factory=list)

    def take(self, line: str) -> None:
        """Do what a line says: a command, or a message to answer. Raises Ended, OptionError."""
        if not line.startswith("/"):
            self._ask(line)
            return
        name, _, rest = line.partition(" ")
        command = COMMANDS.get(name)
        if command is None:
            raise OptionError(f"{name}: is not a command; /help lists them")
        command(self, rest.strip())

    def _ask(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        try:
            self._answer()
        except BaseException:  # Ctrl-C before the first token too
            self.messages.pop()
            raise

    def _answer(self) -> None:
        """Stream an answer to the last message; what Ctrl-C cuts off stays in the conversation."""
        from tensorplug_llm.chat import encode_chat  # noqa: PLC0415 - takes a while to import

        model = self.engine.model
        ids = encode_chat(model.tokenizer, self.template, self.messages, most=self.engine.context)
        parts: list[str] = []
        stream = self.engine.submit(ids, self.params)
        try:
            for _, piece in stream.pieces():
                parts.append(piece)
                write(piece)
        except Stopped:
            write(" [stopped]")
        finally:
            stream.cancel()
        typer.echo()
        if stream.finish == "context":
            typer.echo("[the context is full: /undo or /clear]", err=True)
        self.messages.append({"role": "assistant", "content": "".join(parts)})

    def _help(self, _rest: str) -> None:
        typer.echo(HELP)

    def _clear(self, _rest: str) -> None:
        self.messages = [m for m in self.messages[:1] if m["role"] == "system"]

    def _undo(self, _rest: str) -> None:
        self._forget()

    def _forget(self) -> str:
        """Take the last question out, and all that came of it; return it."""
        asked = [i for i, m in enumerate(self.messages) if m["role"] == "user"]
        if not asked:
            raise OptionError("there is no question yet; ask one")
        question = str(self.messages[asked[-1]]["content"])
        del self.messages[asked[-1] :]
        return question

    def _retry(self, _rest: str) -> None:
        self._ask(self._forget())

    def _system(self, rest: str) -> None:
        self.messages = [{"role": "system", "content": rest}] if rest else []

    def _history(self, _rest: str) -> None:
        write(f"{self._text()}\n")

    def _save(self, rest: str) -> None:
        if not rest:
            raise OptionError("/save: names no file; give one")
        # Bytes of the terminal outside UTF-8 are written as they came.
        data = f"{self._text()}\n".encode(errors="surrogateescape")
        try:
            Path(rest).write_bytes(data)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            why = error.strerror if isinstance(error, OSError) else error
            raise OptionError(f"/save: {rest}: {why}; give another file") from error

    def _text(self) -> str:
        return "\n\n".join(f"{m['role']}: {m['content']}" for m in self.messages)

    def _quit(self, _rest: str) -> None:
        raise Ended


COMMANDS: Mapping[str, Callable[[Conversation, str], None]] = {
    f"/{name}": getattr(Conversation, f"_{name}")
    for name in ("help", "clear", "undo", "retry", "system", "history", "save", "quit")
}


def converse(conversation: Conversation, read: Callable[[], str]) -> None:
    """Take lines from `read` until the conversation ends."""
    while True:
        try:
            if line := read().strip():
                conversation.take(line)
        except (EOFError, Ended):
            return
        except Stopped:
            typer.echo("\n[/quit or Ctrl-D ends]", err=True)
        except (OptionError, TensorplugError) as error:
            if conversation.engine.failure is not None:
                raise
            typer.echo(f"[{printable(str(error))}]", err=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let each Ctrl-C raise Stopped: elsewhere the second one ends the process."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Stopped

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def reader() -> Callable[[], str]:
    """Reads a line of the terminal, which may be edited where the system has readline."""
    if sys.stdin.isatty() and find_spec("readline") is not None:
        import readline  # noqa: F401, PLC0415 - `input` uses it once it is imported
    if isinstance(sys.stdin, io.TextIOWrapper):  # for bytes outside UTF-8
        sys.stdin.reconfigure(errors="surrogateescape")
    return lambda: input(PROMPT if sys.stdin.isatty() else "")


@with_groups
def chat(
    model: Model,
    *,
    system: Annotated[str | None, typer.Option(help="Instruction that begins it.")] = None,
    tokens: Annotated[
        int, typer.Option(min=1, help="Largest number of tokens of an answer.")
    ] = 1024,
    choosing: Choosing,
    remembering: Remembering,
    loading: Loading,
    failing: Failing,
) -> None:
    """Talk with a model on the terminal; /help lists commands."""
    from tensorplug_llm.chat import ChatTemplate  # noqa: PLC0415 - takes a while to import

    with reporting(traceback=failing.traceback):
        params = params_of(choosing, tokens)
        with loaded(model, loading, remembering) as found:
            template = ChatTemplate.from_metadata(found.file.metadata)
            with Engine(
                found,
                rows=found.context,
                texts=1,
                kv=remembering.kv_type,
                on_failure=remembering.on_failure,
                prompt_lookup=remembering.prompt_lookup,
            ) as engine:  # its thread computes, so that Ctrl-C interrupts no pass
                conversation = Conversation(engine, template, params)
                if system:
                    conversation.messages.append({"role": "system", "content": system})
                with interruptible():
                    converse(conversation, reader())

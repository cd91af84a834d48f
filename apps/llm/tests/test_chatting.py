"""`chat`: messages, commands, and Ctrl-C, which stops an answer and not the program."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tensorplug import Backend
from tensorplug.errors import OptionError
from tensorplug_llm import Engine, SamplingParams, load_model
from tensorplug_llm.chat import ChatTemplate
from tensorplug_llm.cli import app, chatting
from tensorplug_llm.cli.chatting import Conversation, Stopped, converse

from .gguf_files import CHAT

Write = Callable[..., Path]


@pytest.fixture
def conversation(model_file: Write, cpu: Backend) -> Iterator[Conversation]:
    with (
        load_model(model_file(), [cpu]) as model,
        Engine(model, context=256, rows=256, texts=1) as engine,
    ):
        params = SamplingParams(temperature=0, max_tokens=4)
        yield Conversation(engine, ChatTemplate(CHAT, trusted=True), params)


def lines(*texts: str) -> Callable[[], str]:
    left = iter(texts)

    def read() -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    return read


def roles(conversation: Conversation) -> list[object]:
    return [message["role"] for message in conversation.messages]


def test_answers_follow_their_questions(conversation: Conversation) -> None:
    converse(conversation, lines("he", "", "hello"))

    assert roles(conversation) == ["user", "assistant", "user", "assistant"]


def test_an_answer_is_printed_as_the_conversation_has_it(
    conversation: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation.take("he")

    assert capsys.readouterr().out == f"{conversation.messages[-1]['content']}\n"


def test_the_last_question_is_answered_again(conversation: Conversation) -> None:
    conversation.take("he")
    before = list(conversation.messages)

    conversation.take("/retry")

    assert conversation.messages == before


def test_the_last_question_is_forgotten(conversation: Conversation) -> None:
    converse(conversation, lines("/system be", "he", "hello", "/undo"))

    assert roles(conversation) == ["system", "user", "assistant"]


def test_a_new_conversation_keeps_its_instruction(conversation: Conversation) -> None:
    converse(conversation, lines("/system be", "he", "/clear"))

    assert conversation.messages == [{"role": "system", "content": "be"}]


def test_a_terminal_shows_control_characters_of_the_conversation(
    conversation: Conversation,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    conversation.messages = [{"role": "user", "content": "\x1b]0;title\x07 \udce9"}]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    conversation.take("/history")

    assert capsys.readouterr().out == "user: \\x1b]0;title\\x07 \\udce9\n"


def test_control_characters_of_a_wrong_command_are_shown(
    conversation: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    converse(conversation, lines("/\x1b[31m"))

    assert capsys.readouterr().err == "[/\\x1b[31m: is not a command; /help lists them]\n"


def test_a_conversation_is_saved(conversation: Conversation, tmp_path: Path) -> None:
    conversation.take("/system be")

    conversation.take(f"/save {tmp_path / 'text'}")

    assert (tmp_path / "text").read_text(encoding="utf-8") == "system: be\n"


def test_bytes_outside_utf8_are_saved_as_they_came(
    conversation: Conversation, tmp_path: Path
) -> None:
    conversation.take("/system caf\udce9")

    conversation.take(f"/save {tmp_path / 'text'}")

    assert (tmp_path / "text").read_bytes() == b"system: caf\xe9\n"


@pytest.mark.parametrize("line", ["/colour", "/undo", "/retry", "/save", "/save .", "/save a\0b"])
def test_what_cannot_be_done_is_said_and_the_program_goes_on(
    line: str, conversation: Conversation, capsys: pytest.CaptureFixture[str]
) -> None:
    converse(conversation, lines(line, "he"))

    assert capsys.readouterr().err.startswith("[")
    assert roles(conversation) == ["user", "assistant"]


def test_quit_ends_before_what_follows(conversation: Conversation) -> None:
    converse(conversation, lines("/quit", "he"))

    assert conversation.messages == []


def test_an_interrupt_stops_the_answer_and_not_the_program(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    def write(text: str) -> None:
        written.append(text)
        if len(written) == 2:
            raise Stopped

    monkeypatch.setattr(chatting, "write", write)

    converse(conversation, lines("he", "hello"))

    assert written[2] == " [stopped]"
    assert roles(conversation) == ["user", "assistant", "user", "assistant"]
    assert conversation.engine.load.running == 0


def test_a_question_whose_answer_was_interrupted_before_it_began_is_forgotten(
    conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(*_: object) -> None:
        monkeypatch.undo()
        raise Stopped

    monkeypatch.setattr(conversation.engine, "submit", submit)

    converse(conversation, lines("he", "hello"))

    assert roles(conversation) == ["user", "assistant"]


def test_an_interrupt_at_the_prompt_does_not_end_the_program(conversation: Conversation) -> None:
    interrupts = iter([Stopped()])
    others = lines("he")

    def read() -> str:
        for interrupt in interrupts:
            raise interrupt
        return others()

    converse(conversation, read)

    assert roles(conversation) == ["user", "assistant"]


def test_a_message_beyond_the_context_is_refused_and_forgotten(
    conversation: Conversation,
) -> None:
    with pytest.raises(OptionError, match="context of 256 tokens"):
        conversation.take("a" * 400)

    assert conversation.messages == []


def test_command_answers_lines_of_stdin(model_file: Write) -> None:
    arguments = ["chat", str(model_file()), "--device", "cpu?threads=1", "--tokens", "3"]

    result = CliRunner().invoke(app, [*arguments, "--temperature", "0"], input="he\n/history\n")

    assert result.exit_code == 0
    assert "user: he" in result.stdout


def test_command_takes_bytes_that_are_no_utf_8(model_file: Write) -> None:
    arguments = ["chat", str(model_file()), "--device", "cpu?threads=1", "--tokens", "3"]

    result = CliRunner().invoke(app, [*arguments, "--temperature", "0"], input=b"h\xe9\n")

    assert result.exit_code == 0


PRESSED = """
import os, signal
from tensorplug_llm.cli.chatting import Stopped, interruptible

def main():
    with interruptible():
        for _ in range(3):
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except Stopped:
                print("stopped", flush=True)
        os.kill(os.getpid(), signal.{})
        print("goes on")
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals of POSIX")
@pytest.mark.parametrize(
    ("last", "status", "more"), [("SIGTERM", 143, ""), ("SIGCONT", 0, "goes on\n")]
)
def test_each_interrupt_stops_an_answer_and_another_signal_the_program(
    last: str, status: int, more: str, tmp_path: Path
) -> None:
    (tmp_path / "pressed.py").write_text(PRESSED.format(last))
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    program += "from tensorplug_console import run; run('pressed')"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (status, 3 * "stopped\n" + more)

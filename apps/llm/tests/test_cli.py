"""The commands: what they print where, and how they fail."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tensorplug import Backend
from tensorplug.cli import app as tensorplug_app
from tensorplug_llm.cli import app
from tensorplug_llm.cli.output import write
from tensorplug_llm.testing import tiny_models

Write = Callable[..., Path]
Run = Callable[..., Result]


@pytest.fixture
def run(model_file: Write) -> Run:
    """Runs a command on a tiny llama; `{model}` in its arguments stands for the file."""
    path = model_file()

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, [a.format(model=path) for a in arguments])

    return invoke


CHEAP = ("--device", "cpu?threads=1")
GREEDY = ("--temperature", "0")


def test_generate_prints_the_prompt_and_its_continuation(run: Run) -> None:
    result = run("generate", "{model}", "--prompt", "hello", "--tokens", "8", *CHEAP)

    assert result.exit_code == 0
    assert result.stdout.startswith("hello")
    assert result.stdout.endswith("\n")
    assert result.stderr.startswith("[")
    assert "; cpu:0, 1 threads; loaded in " in result.stderr


def test_generate_prints_one_json_object(run: Run) -> None:
    result = run("generate", "{model}", "--prompt", "hello", "--tokens", "8", "--json", *CHEAP)

    report = json.loads(result.stdout)
    assert set(report) == {"prompt_ids", "ids", "text", "finish", "timings"}
    assert len(report["prompt_ids"]) == 4  # the model's only merge makes one token of "he"
    assert len(report["ids"]) <= 8
    assert report["timings"]["generated_tokens"] == len(report["ids"])
    assert result.stderr == ""


def test_results_of_a_prompt_draw_by_seeds_that_differ(run: Run) -> None:
    shared = ("generate", "{model}", "--prompt", "abc", "--tokens", "9", "--seed", "5", *CHEAP)

    report = json.loads(run(*shared, "--n", "3", "--json").stdout)

    texts = [result["text"] for result in report["results"]]
    assert len({*texts}) == 3
    assert texts[0] == json.loads(run(*shared, "--json").stdout)["text"]
    assert run(*shared, "--n", "3").stdout == "".join(f"abc{text}\n" for text in texts)


def test_generate_streams_the_text_that_json_reports(run: Run) -> None:
    shared = ("generate", "{model}", "--prompt", "abc", "--tokens", "20", *GREEDY, *CHEAP)

    text = json.loads(run(*shared, "--json").stdout)["text"]

    assert run(*shared).stdout == f"abc{text}\n"


def test_chat_prints_the_answer_alone(run: Run) -> None:
    shared = ("generate", "{model}", "--prompt", "hi", "--tokens", "4", "--chat", *GREEDY, *CHEAP)

    report = json.loads(run(*shared, "--json").stdout)

    assert len(report["prompt_ids"]) == len("<user>hi")
    assert run(*shared).stdout == f"{report['text']}\n"


def test_saved_graph_is_one_that_explain_reads(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "token.graph"

    assert (
        run(
            "generate",
            "{model}",
            "--prompt",
            "ab",
            "--tokens",
            "2",
            "--save-graph",
            str(file),
            *CHEAP,
        ).exit_code
        == 0
    )

    explained = CliRunner().invoke(tensorplug_app, ["explain", str(file), "--device", "cpu"])
    assert explained.exit_code == 0, explained.output
    assert "mul_mat" in explained.output


def test_settings_of_the_sampler_arrive(run: Run) -> None:
    shared = ("generate", "{model}", "--prompt", "a", "--json", "--tokens", "20", *CHEAP)
    hot = ("--temperature", "2", "--top-k", "50", "--top-p", "0.9", "--min-p", "0.01")

    texts = [
        json.loads(run(*shared, *hot, "--seed", seed).stdout)["ids"] for seed in ("1", "1", "2")
    ]

    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("threads", ["1", "2"])
def test_threads_are_set(threads: str, run: Run) -> None:
    shared = ("bench", "{model}", "--prompt-tokens", "4", "--tokens", "2", "--repeat", "1")

    assert json.loads(run(*shared, "--threads", threads, "--json").stdout)["threads"] == int(
        threads
    )


def test_bench_prints_one_json_object(run: Run) -> None:
    result = run(
        "bench",
        "{model}",
        "--prompt-tokens",
        "20",
        "--tokens",
        "4",
        "--repeat",
        "2",
        "--json",
        *CHEAP,
    )

    report = json.loads(result.stdout)
    assert {
        "prefill_tokens_per_s",
        "decode_tokens_per_s",
        "load_s",
        "plan_s",
        "first_token_s",
        "peak_rss_mib",
        "device",
        "threads",
    } <= set(report)
    assert report["device"] == "cpu:0"
    assert len(report["decode_series"]) == 2


def test_perplexity_reads_a_text(run: Run, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question", encoding="utf-8")

    report = json.loads(run("perplexity", "{model}", str(text), "--json", *CHEAP).stdout)

    assert report["perplexity"] > 1
    assert report["windows"] == 1
    assert run("perplexity", "{model}", str(text), *CHEAP).stdout.startswith("perplexity ")


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    tiny_models.write("bert", tmp_path / "bert.gguf")
    return tmp_path / "bert.gguf"


def test_embed_writes_a_line_of_numbers_for_each_line(encoder: Path, tmp_path: Path) -> None:
    file = tmp_path / "texts"
    file.write_text("a b\n\nab\n", encoding="utf-8")

    result = CliRunner().invoke(app, ["embed", str(encoder), str(file), *CHEAP])

    lines = result.stdout.splitlines()
    assert [len(line.split()) for line in lines] == [64, 64]
    assert sum(float(n) ** 2 for n in lines[0].split()) == pytest.approx(1)


def test_embed_reads_stdin_and_writes_one_json_object(encoder: Path) -> None:
    result = CliRunner().invoke(app, ["embed", str(encoder), "--json", *CHEAP], input="a b\nab\n")

    assert [len(vector) for vector in json.loads(result.stdout)["embeddings"]] == [64, 64]


def test_embed_takes_only_line_ends_as_ends_of_texts(encoder: Path) -> None:
    text = "a\x0cb\r\na\u2028b\n"

    result = CliRunner().invoke(app, ["embed", str(encoder), "--json", *CHEAP], input=text)

    assert len(json.loads(result.stdout)["embeddings"]) == 2


def test_embed_without_a_text_says_so(encoder: Path) -> None:
    result = CliRunner().invoke(app, ["embed", str(encoder), *CHEAP], input="\n")

    assert result.exit_code == 1
    assert "-: has no lines with text in them" in result.stderr


def test_stop_string_ends_the_text_before_it(run: Run) -> None:
    shared = ("generate", "{model}", "--prompt", "abc", "--tokens", "20", "--json", *GREEDY, *CHEAP)
    text = json.loads(run(*shared).stdout)["text"]

    report = json.loads(run(*shared, "--stop", text[5:8], "--stop", "never").stdout)

    assert report["text"] == text[: text.index(text[5:8])]
    assert report["finish"] == "stop"


def test_log_probabilities_are_those_of_the_ids(run: Run) -> None:
    shared = ("generate", "{model}", "--prompt", "abc", "--tokens", "5", "--json", *CHEAP)

    report = json.loads(run(*shared, *GREEDY, "--logprobs", "2").stdout)

    assert [entry["id"] for entry in report["logprobs"]] == report["ids"]
    for entry in report["logprobs"]:
        best, second = entry["top"]
        assert best == {"id": entry["id"], "logprob": entry["logprob"]}
        assert 0 > best["logprob"] >= second["logprob"]


def test_bias_forbids_a_token(run: Run) -> None:
    shared = ("generate", "{model}", "--prompt", "abc", "--tokens", "5", "--json", *GREEDY, *CHEAP)
    first = json.loads(run(*shared).stdout)["ids"][0]

    changed = json.loads(run(*shared, "--logit-bias", f"{first}-inf").stdout)["ids"]

    assert first not in changed


def test_schema_comes_from_the_command_line_or_a_file(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    file = tmp_path / "schema.json"
    file.write_text('{"enum": ["a", "b"]}', encoding="utf-8")
    shared = ("generate", "{model}", "--prompt", "abc", "--tokens", "9", "--json", *CHEAP)

    for given in ('{{"enum": ["a", "b"]}}', f"@{file}"):
        report = json.loads(run(*shared, "--json-schema", given).stdout)
        assert json.loads(report["text"]) in {"a", "b"}
        assert report["finish"] == "stop"


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--context", "3"),
            "prompt: 4 tokens leave no room in the context of 3 tokens; shorten the prompt, or ask "
            "for a larger context: this model can have 1024",
        ),
        (("--context", "5000"), "context: 5000 tokens; this model was trained for 1 to 1024"),
        (
            ("--context", "1234567890123"),
            "context: 1234567890123 tokens; this model was trained for 1 to 1024",
        ),
        (
            ("--layers", "7"),
            "layers: 7 do not distribute 2 layers over cpu:0; give at most one number for each "
            "device, none negative",
        ),
        (
            ("--layers", "one"),
            "--layers: 'one' is not a list of numbers; give one for each device, such as 10,20",
        ),
        (
            ("--kv", "q8"),
            "kv: 'q8' is not a type of the cache; choose f16, f32, q8_0, q5_1, q4_0 or iq4_nl",
        ),
        (
            ("--logit-bias", "15"),
            "--logit-bias: '15' is not a token and a number; give them as in 15043+1 or 15043-inf",
        ),
        (
            ("--json-schema", "@none.json"),
            "--json-schema: none.json: No such file or directory; give @ and a text file",
        ),
        (("--temperature", "-1"), "sampling: temperature is -1.0; give a number of at least 0"),
        *(
            (
                ("--device", "cpu", "--split", "tensor", "--ratio", ratio),
                f"deal: ratio ({ratio},); give a part, finite and not negative, for each device",
            )
            for ratio in ("nan", "inf", "-1.0", "0.0")
        ),
        (
            ("--device", "cpu", "--threads", "100000"),
            "cpu:0: threads=100000, and at most 4096 can be used; give as many as there are cores",
        ),
        (
            ("--device", "cpu?threads=-1"),
            "cpu:0: option threads=-1 is negative; use 0 for all cores",
        ),
    ],
)
def test_wrong_wishes_are_one_paragraph_on_stderr(
    arguments: tuple[str, ...], message: str, run: Run
) -> None:
    result = run("generate", "{model}", "--prompt", "hello", *arguments)

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"tensorplug-llm: {message}\n"


def test_unknown_device_is_named(run: Run) -> None:
    result = run("generate", "{model}", "--prompt", "hello", "--device", "abacus:0")

    assert result.exit_code == 1
    assert result.stderr.startswith("tensorplug-llm: abacus")
    assert result.stderr.count("\n") == 1


def test_missing_file_is_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "none.gguf"
    result = run("generate", str(path), "--prompt", "hello")

    assert result.exit_code == 1
    assert result.stderr == (
        f"tensorplug-llm: {path}: No such file or directory; give the path of a readable GGUF "
        "file\n"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "No such file or directory; give the path of a text"),
        (b"\xff\xfe", "is not UTF-8 (invalid start byte); convert it"),
    ],
)
def test_unreadable_text_is_named(
    data: bytes | None, message: str, run: Run, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    if data is not None:
        text.write_bytes(data)

    result = run("perplexity", "{model}", str(text), *CHEAP)

    assert result.exit_code == 1
    assert result.stderr == f"tensorplug-llm: {text}: {message}\n"


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="reads a file without end")
def test_a_text_without_end_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorplug_llm.cli.MOST_TEXT", 1000)

    result = run("perplexity", "{model}", "/dev/zero", *CHEAP)

    assert result.exit_code == 1
    assert result.stderr == (
        "tensorplug-llm: /dev/zero: has more than 1000 bytes; give a shorter text: the first "
        "million bytes tell as much\n"
    )


def test_model_without_a_chat_template_says_so(model_file: Write) -> None:
    path = model_file(metadata={"tokenizer.chat_template": None})

    result = CliRunner().invoke(app, ["generate", str(path), "--prompt", "hi", "--chat"])

    assert result.exit_code == 1
    assert result.stderr.startswith("tensorplug-llm: tokenizer.chat_template: the model has no")


def test_traceback_is_shown_when_asked_for(run: Run) -> None:
    result = run("generate", "{model}", "--prompt", "hello", "--context", "3", "--traceback")

    assert result.exit_code == 1
    assert result.stderr.startswith("Traceback (most recent call last):")
    assert "PromptTooLong: prompt: 4 tokens" in result.stderr


def test_interrupt_ends_quietly(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tensorplug_llm.cli.loading.load_model", interrupted)

    result = run("generate", "{model}", "--prompt", "hello")

    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "")


def test_full_device_is_one_paragraph(
    run: Run, walled: Callable[..., Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorplug_llm.cli.loading.tp.open", lambda _: walled(limit=1000))

    result = run("generate", "{model}", "--prompt", "hello")

    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("tensorplug-llm: walled:0: ")
    assert result.stderr.endswith(" bytes asked for, 1000 left\n")
    assert result.stderr.count("\n") == 1


def test_one_device_may_be_given_twice(run: Run) -> None:
    shared = ("generate", "{model}", "--prompt", "hello", "--tokens", "5", "--json", *GREEDY)

    once, twice = (json.loads(run(*shared, *CHEAP * n).stdout)["ids"] for n in (1, 2))

    assert once == twice


@pytest.mark.parametrize("arguments", [["generate"], ["generate", "m", "--tokens", "0"], ["sing"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


def test_console_script_survives_a_reader_that_leaves(model_file: Write) -> None:
    command = [sys.executable, "-c", "from tensorplug_llm_console import main; main()"]
    arguments = ["generate", str(model_file()), "--prompt", "hello", "--tokens", "400", *CHEAP]

    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(5)
        process.stdout.close()
        complaints = process.stderr.read()

    assert "Traceback" not in complaints


ESCAPES = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J\n"


def test_text_of_a_model_reaches_a_pipe_as_it_is(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write(ESCAPES)

    assert capfdbinary.readouterr().out == ESCAPES.encode()


def test_terminal_shows_control_characters_instead_of_obeying_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    write(ESCAPES)

    assert capsys.readouterr().out == ("\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07 \\x9b2J\n")


def test_parts_of_every_layer_say_what_whole_layers_say(run: Run) -> None:
    shared = ("generate", "{model}", "--prompt", "abc", "--tokens", "8", "--json", *GREEDY, *CHEAP)

    both = run(*shared, *CHEAP, "--split", "tensor", "--ratio", "3,1")

    assert both.exit_code == 0
    assert json.loads(both.stdout)["ids"] == json.loads(run(*shared).stdout)["ids"]


def test_ratio_that_is_no_list_of_numbers_is_refused(run: Run) -> None:
    result = run(
        "generate", "{model}", "--prompt", "a", "--split", "tensor", "--ratio", "x", *CHEAP
    )

    assert result.exit_code == 1
    assert result.stderr == (
        "tensorplug-llm: --ratio: 'x' is not a list of numbers; give one for each device, such as "
        "3,1\n"
    )


def test_policy_for_failures_is_passed_on(run: Run) -> None:
    shared = ("generate", "{model}", "--prompt", "abc", "--tokens", "4", *GREEDY, *CHEAP)

    usual, careful = run(*shared), run(*shared, "--on-failure", "replan")

    assert careful.stdout == usual.stdout
    assert "choose from raise, replan" in run(*shared, "--on-failure", "retry").stderr


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *(("chat", option) for option in ("--json", "--n=1", "--logprobs=1")),
        ("fit", "--threads=1"),
        ("serve", "--json"),
    ],
)
def test_option_that_would_do_nothing_is_unknown(command: str, option: str) -> None:
    result = CliRunner().invoke(app, [command, "none.gguf", option])

    assert result.exit_code == 2
    assert "No such option" in result.stderr

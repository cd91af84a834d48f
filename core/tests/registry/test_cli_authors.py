"""The commands for authors of backends: `ops` and `new-backend`."""

import json

import pytest
from typer.testing import CliRunner

import tensorplug as tp
from tensorplug.cli import app


@pytest.fixture
def run():
    """Run a command line; gives the exit status and what was printed."""

    def call(*arguments):
        done = CliRunner().invoke(app, [str(a) for a in arguments])
        return done.exit_code, done.stdout, done.stderr

    return call


def test_ops_prints_a_record_for_each_op(run):
    status, out, _ = run("ops", "--json")

    records = {record["name"]: record for record in json.loads(out)["ops"]}
    assert status == 0
    assert set(records) == set(tp.OPS)
    assert records["permute"]["view"]
    assert records["cpy"]["writes"]
    assert records["soft_max"]["in_place"] == ["x"]


def test_ops_ends_with_how_many_there_are(run):
    _, out, _ = run("ops")

    computing = sum(not op.is_view for op in tp.OPS.values())
    assert out.splitlines()[-1] == (
        f"{len(tp.OPS)} ops, {computing} that compute and {len(tp.OPS) - computing} views"
    )


@pytest.mark.parametrize(
    ("into", "shown"),
    [
        (None, "./tensorplug-acme"),
        ("there", "./there"),
        ("a folder", "'./a folder'"),
        ("/", ""),
    ],
)
def test_new_backend_ends_with_a_command_that_pip_takes_for_a_folder(
    run, tmp_path, monkeypatch, into, shown
):
    monkeypatch.chdir(tmp_path)
    absolute = tmp_path / "absolute"
    options = ["--into", absolute if into == "/" else into] if into else []

    _, out, _ = run("new-backend", "acme", *options)

    last = out.splitlines()[-1]
    wanted = f"pip install 'tensorplug[testing]' --editable {shown or absolute}"
    assert last == f"{wanted} && tensorplug test --device acme --tier smoke"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["cpu"],
            "error: new-backend: cpu is a backend that exists (pip install 'tensorplug[cpu]'); ",
        ),
        (["acme", "--into", "file"], "error: new-backend: file exists and is not an empty folder"),
        (["gpu"], "error: new-backend: gpu has a meaning in device strings; "),
        (["simt"], "error: new-backend: tensorplug-simt is a distribution that exists; "),
        (["Acme"], "error: new-backend: the name 'Acme' must be "),
        (["é"], "error: new-backend: the name 'é' must be "),
        (["a_"], "error: new-backend: the name 'a_' must be "),
        (["a" * 61], f"error: new-backend: the name '{'a' * 61}' must be "),
    ],
)
def test_new_backend_refuses_what_would_be_in_the_way(
    run, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")

    status, out, err = run("new-backend", *arguments)

    assert (status, out) == (2, "")
    assert err.startswith(message)

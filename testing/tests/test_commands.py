"""The commands `test`, `certify` and `support`, on the cpu device."""

import csv
import importlib.metadata
import io
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


def test_json_has_a_summary_and_a_record_for_each_case(run):
    status, out, _ = run("test", "--device", "cpu", "-o", "add", "--tier", "smoke", "--json")

    result = json.loads(out)
    summary, records = result["summary"], result["records"]
    assert status == 0
    assert summary == {
        "device": "cpu:0",
        "tier": "smoke",
        "seed": 0,
        "passed": len(records),
        "failed": 0,
        "refused": 0,
        "ops": 1,
    }
    assert set(records[0]) == {"case", "op", "verdict", "detail", "seed", "seconds", "cause"}


def test_csv_has_one_line_for_each_case(run):
    _, out, _ = run("test", "--device", "cpu", "-o", "add", "--tier", "smoke", "--csv")

    rows = list(csv.DictReader(io.StringIO(out)))
    assert {row["verdict"] for row in rows} == {"passed"}
    assert all(row["case"].startswith("add-") for row in rows)


def test_cases_are_picked_by_a_regular_expression(run):
    _, out, _ = run("test", "--device", "cpu", "-p", "^rope-f16.*neox", "--tier", "full", "--json")

    cases = [record["case"] for record in json.loads(out)["records"]]
    assert cases
    assert all(case.startswith("rope-f16") and "neox" in case for case in cases)


def test_another_seed_draws_other_values(run):
    options = ("test", "--device", "cpu", "-o", "neg", "--tier", "smoke", "--json")

    first, second = (json.loads(run(*options, "--seed", n)[1])["records"] for n in (0, 1))

    assert [r["case"] for r in first] == [r["case"] for r in second]
    assert all(a["seed"] != b["seed"] for a, b in zip(first, second, strict=True))


@pytest.mark.long
def test_several_processes_give_the_same_records_in_the_same_order(run):
    options = ("test", "--device", "cpu", "-o", "add", "-o", "scale", "--json")

    alone, shared = (json.loads(run(*options, "-j", n)[1])["records"] for n in (1, 2))

    assert [(r["case"], r["verdict"]) for r in alone] == [(r["case"], r["verdict"]) for r in shared]


def test_support_mode_computes_nothing_and_gives_reasons(run):
    status, out, _ = run("test", "--device", "cpu", "--mode", "support", "-o", "mul_mat", "--json")

    result = json.loads(out)
    assert status == 0
    assert result["summary"]["supported"] + result["summary"]["refused"] == len(result["records"])
    assert all(record["supported"] is (record["reason"] == "") for record in result["records"])


def test_perf_mode_gives_times_and_rates(run):
    _, out, _ = run(
        "test", "--device", "cpu", "--mode", "perf", "-p", "^rms_norm-f32_640x512", "--json"
    )

    (record,) = json.loads(out)["records"]
    assert record["microseconds"] > 0
    assert record["gigabytes_per_second"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "ropee"], "error: no case of op 'ropee'; did you mean 'rope'?\n"),
        (["-o", "MUL_MAT"], "error: no case of op 'MUL_MAT'; did you mean 'mul_mat'?\n"),
        (["-o", "sort"], "error: no case of op 'sort'; did you mean 'argsort'?\n"),
        (["-o", "qqqq"], "error: no case of op 'qqqq'; `tensorplug ops` lists the ops\n"),
        (["-o", "reshape"], "error: no case of op 'reshape'; it is a view and computes nothing; "),
        (["-o", "neg", "--mode", "perf"], "error: no case of op 'neg'; here are those of add, "),
        (["-p", "("], "error: pattern '(' is not a regular expression: "),
        (["-p", "nothing like it"], "error: no case matches 'nothing like it'; "),
        (["--tier", "huge"], "error: tier 'huge' is unknown; tiers are smoke, ci, full\n"),
        (["--mode", "fast"], "error: mode 'fast' is unknown; modes are test, perf, support\n"),
        (["--json", "--csv"], "error: give either --json or --csv\n"),
    ],
)
def test_wrong_choice_is_refused_with_a_sentence(run, arguments, message):
    status, out, err = run("test", "--device", "cpu", *arguments)

    assert (status, out) == (2, "")
    assert err.startswith(message)


@pytest.mark.long
def test_certify_prints_the_page_that_it_writes(run, tmp_path):
    status, out, _ = run("certify", "--device", "cpu", "--tier", "smoke", "-O", tmp_path)

    page = (tmp_path / "certificate-cpu-0.md").read_text()
    assert status == 0
    assert out.startswith(page.rstrip())


@pytest.mark.long
def test_certificate_names_the_options_of_the_device(run, tmp_path):
    run("certify", "--device", "cpu?threads=1", "--tier", "smoke", "-O", tmp_path)

    page = (tmp_path / "certificate-cpu-0-threads-1.md").read_text()
    assert page.startswith("# cpu:0?threads=1 passes the conformance kit")
    assert "`tensorplug certify --device 'cpu?threads=1' --tier smoke --seed 0`" in page


@pytest.mark.long
def test_certify_writes_a_page_and_its_data(run, tmp_path):
    device = "cpu@tensorplug-cpu"
    arguments = ("certify", "--device", device, "--tier", "smoke", "-O", tmp_path, "--json")
    status, out, _ = run(*arguments)

    version = importlib.metadata.version("tensorplug-cpu")
    page = (tmp_path / "certificate-cpu-0.md").read_text()
    data = json.loads((tmp_path / "certificate-cpu-0.json").read_text())
    assert status == 0
    assert page.startswith("# cpu:0 passes the conformance kit (tier smoke)\n")
    assert "`tensorplug certify --device cpu@tensorplug-cpu --tier smoke --seed 0`" in page
    assert data["certified"]
    assert data["summary"]["failed"] == 0
    assert json.loads(out)["environment"]["versions"].startswith(f"tensorplug-cpu {version}, ")


def test_perf_mode_shares_nothing_out(run):
    done = run("test", "--device", "cpu", "--mode", "perf", "-o", "add", "-j", "2")

    assert done == (2, "", "error: mode perf times one case after another; leave -j out\n")


def test_certify_says_at_once_that_it_cannot_write(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(
        "tensorplug_testing.cli.commands.certificate_of", lambda *_: pytest.fail("it ran")
    )

    status, out, err = run("certify", "--device", "cpu", "-O", tmp_path / "file")

    assert (status, out) == (1, "")
    assert err.startswith("error: [Errno 17] File exists: ")


def test_case_that_cannot_be_timed_costs_no_other(run, monkeypatch):
    def timed(case, backend, base):
        raise ValueError(f"no time for {case.op}")

    monkeypatch.setattr("tensorplug_testing.performance._timed", timed)

    status, out, _ = run("test", "--device", "cpu", "--mode", "perf", "-o", "rms_norm", "--json")

    records = json.loads(out)["records"]
    assert status == 1
    assert records
    assert all(r["failed"] and "ValueError: no time for rms_norm" in r["refusal"] for r in records)


def test_support_prints_a_column_for_each_device(run):
    status, out, _ = run("support", "--device", "cpu", "--device", "cpu@tensorplug-cpu")

    head, _, *rows = out.splitlines()
    assert status == 0
    assert head == "| op | computes | types | cpu | cpu |"
    assert [row.split("`")[1] for row in rows] == list(tp.OPS)


def test_support_gives_every_answer_as_json(run):
    _, out, _ = run("support", "--device", "cpu@tensorplug-cpu", "--json")

    (told,) = json.loads(out)
    assert told["summary"]["device"] == "cpu:0"
    assert told["summary"]["supported"] > 11_000


def test_support_needs_a_device(run):
    status, _, err = run("support")

    assert status == 2
    assert "--device" in err

"""The command line: what it prints, where, and with which exit status."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import tensorplug as tp
from tensorplug.cli import app
from tensorplug.inspect import graphfile
from tensorplug_testing.distributions import plugin_source, write_distribution

REMEDY = "upgrade or uninstall acme-gpu, or set TENSORPLUG_DISABLE=acme"
CPU = "return [NullDevice('cpu:0', host=True, device_type=tensorplug.DeviceType.CPU)]"


@pytest.fixture
def run(shelf):
    """Run a command with only the distributions of the shelf."""

    def invoke(*arguments, **environ):
        everything = {"TENSORPLUG_BACKENDS": "acme", "TENSORPLUG_DISABLE": None, **environ}
        return CliRunner().invoke(app, [str(a) for a in arguments], env=everything)

    return invoke


def candidates(result):
    return {c["name"]: (c["state"], c["reason"]) for c in json.loads(result.stdout)["candidates"]}


# --- info --------------------------------------------------------------------------------------


def test_info_shows_backends_devices_and_variables(shelf, run):
    shelf.add("acme-gpu", plugin_source(devices="return [NullDevice('acme:0', memory=1 << 20)]"))

    result = run("info")

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    acme = next(line.split() for line in lines if line.startswith("acme "))
    assert acme[:5] == ["acme", "acme-gpu", "1.0", "ready", "10"]
    assert [line for line in lines if line.startswith("acme:0")] == [
        "acme:0  gpu   1.0 MiB  1.0 MiB  -         mmap,fusion  a fake device for tests"
    ]
    assert "TENSORPLUG_BACKENDS=acme" in lines
    assert "not set: TENSORPLUG_DISABLE" in lines


@pytest.mark.parametrize(
    ("devices", "command"),
    [
        ("return [NullDevice('acme:0')]", "tensorplug explain --example"),
        (
            "return [NullDevice('acme:0'), NullDevice('acme:1')]",
            "tensorplug explain --example --device acme:0 --device acme:1",
        ),
        ("raise OSError('no driver')", "tensorplug doctor"),
        ("return []", "pip install 'tensorplug[cpu]'"),
    ],
)
def test_info_ends_with_the_next_useful_command(shelf, run, devices, command):
    shelf.add("acme-gpu", plugin_source(devices=devices))

    assert run("info").stdout.splitlines()[-1] == f"next: {command}"


def test_without_a_command_it_says_what_can_be_done_with_what_is_installed(shelf, run):
    shelf.add("acme-gpu", plugin_source())

    told = run().stdout.splitlines()

    assert told[0] == "installed backends: acme"
    calls = [line.split("  ")[0] for line in told if line.startswith("tensorplug ")]
    assert {"tensorplug info", "tensorplug explain --example", "tensorplug doctor"} < set(calls)
    assert "tensorplug test --device cpu --tier smoke" in calls, "the kit is installed here"
    assert told[-1] == "tensorplug --help lists all commands"


def test_shells_complete_commands() -> None:
    environment = {"COMP_WORDS": "tensorplug expl", "COMP_CWORD": "1"}

    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv = ['tensorplug']; from tensorplug.cli import main; main()",
        ],
        env={**os.environ, **environment, "_TENSORPLUG_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == ["explain"]


@pytest.mark.parametrize(
    ("kinds", "best"),
    [
        (["ACCEL", "CPU"], "best is acme:1"),
        (["CPU", "GPU", "IGPU"], "best is acme:1"),
        (["ACCEL"], "best is none of these: name one"),
    ],
)
def test_info_says_which_device_is_meant_by_best(shelf, run, kinds, best):
    made = ", ".join(
        f"NullDevice('acme:{i}', device_type=DeviceType.{kind})" for i, kind in enumerate(kinds)
    )
    top = "from tensorplug.device.device import DeviceType"
    shelf.add("acme-gpu", plugin_source(top=top, devices=f"return [{made}]"))

    assert best in run("info", TENSORPLUG_BACKENDS="acme").stdout.splitlines()


def test_info_says_the_best_device_in_the_order_of_the_variable(shelf, run):
    top = "from tensorplug.device.device import DeviceType"
    for name, kind in (("far", "GPU"), ("near", "CPU")):
        devices = f"return [NullDevice('{name}:0', device_type=DeviceType.{kind})]"
        shelf.add(f"acme-{name}", plugin_source(top=top, devices=devices), name=name)

    assert "best is near:0" in run("info", TENSORPLUG_BACKENDS="near,far").stdout.splitlines()


def test_info_gives_advice_when_nothing_can_be_used(run):
    result = run("info", TENSORPLUG_BACKENDS="nothing")

    advice = "pip install 'tensorplug[cpu]' gives one that runs everywhere"
    assert advice in result.stdout
    assert json.loads(run("info", "--json", TENSORPLUG_BACKENDS="x").stdout)["advice"].endswith(
        advice
    )


@pytest.mark.parametrize("switches", [(), ("--safe",)])
def test_info_as_json_has_candidates_devices_and_variables(shelf, run, switches):
    shelf.add("acme-gpu")

    answer = json.loads(run("info", "--json", *switches).stdout)

    (acme,) = (c for c in answer["candidates"] if c["name"] == "acme")
    (device,) = answer["devices"]
    assert (acme["distribution"], acme["state"], acme["score"]) == ("acme-gpu 1.0", "ready", 10)
    assert (device["name"], device["type"], device["memory_total"]) == ("acme:0", "gpu", 1 << 30)
    assert device["capabilities"]["events"] is False
    assert answer["variables"]["TENSORPLUG_BACKENDS"] == "acme"


def test_info_lists_a_broken_backend_and_still_exits_with_0(shelf, run):
    shelf.add("acme-gpu", "raise ValueError('no')")

    result = run("info", "--json")

    assert result.exit_code == 0
    assert candidates(result)["acme"] == (
        "failed",
        f"importing acme_gpu raised ValueError: no; {REMEDY}",
    )


def test_info_survives_a_device_that_does_not_tell_its_facts(shelf, run):
    lost = (
        "import tensorplug_testing.null as null\n"
        "class Mute(null.NullDevice):\n"
        "    description = property(lambda self: 1 / 0)\n"
    )
    shelf.add("acme-gpu", plugin_source(top=lost, devices="return [Mute('acme:0')]"))

    answer = json.loads(run("info", "--json").stdout)

    assert answer["notes"] == [
        "acme:0 does not tell its facts: ZeroDivisionError: division by zero"
    ]


# --- what kills or stops a process -------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("command", [("doctor",), ("info", "--safe")])
@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "it ends its process with SIGSEGV while it was imported and asked for its score; "
            + REMEDY,
        ),
        (
            "import os, sys; print('out of luck', file=sys.stderr, flush=True); os._exit(7)",
            "it ends its process with status 7 while it was imported and asked for its score; "
            f"{REMEDY}; its last words: out of luck",
        ),
        (
            plugin_source(devices="import os; os.abort()"),
            f"it ends its process with SIGABRT while it listed its devices; {REMEDY}",
        ),
        (
            "while True: pass",
            "it hangs: 8 s were up while it was imported and asked for its score; " + REMEDY,
        ),
    ],
    ids=["crash", "exit", "abort-in-devices", "hang"],
)
def test_a_crash_or_a_hang_is_one_row(shelf, run, source, reason, command):
    shelf.add("acme-gpu", source)
    shelf.add("zeta-npu", plugin_source(devices="return [NullDevice('zeta:0')]"), name="zeta")

    seconds = "8" if "hangs" in reason else "60"
    result = run(*command, "--timeout", seconds, "--json", TENSORPLUG_BACKENDS="acme,zeta")

    found = candidates(result)
    assert found["acme"] == ("failed", reason)
    assert found["zeta"] == ("ready", "")
    assert result.exit_code == (1 if command == ("doctor",) else 0)


# --- doctor ------------------------------------------------------------------------------------


def test_doctor_makes_every_device_work(shelf, run):
    shelf.add(
        "acme-gpu", plugin_source(devices="return [NullDevice('acme:0'), NullDevice('acme:1')]")
    )

    result = run("doctor", "--json")

    answer = json.loads(result.stdout)
    (acme,) = (c for c in answer["candidates"] if c["name"] == "acme")
    assert (result.exit_code, answer["healthy"], acme["healthy"]) == (0, True, True)
    assert acme["checks"] == [
        {"device": device, "step": step, "problem": ""}
        for device in ("acme:0", "acme:1")
        for step in ("open", "memory", "compute", "close")
    ]


def test_doctor_of_one_device_makes_only_that_one_work(shelf, run):
    shelf.add(
        "acme-gpu", plugin_source(devices="return [NullDevice('acme:0'), NullDevice('acme:1')]")
    )
    shelf.add("zeta-gpu", name="zeta")

    lines = run("doctor", "--device", "acme:1").stdout.splitlines()

    assert len(lines) == 3
    assert lines[1].endswith("  acme:1: open, memory, compute, close ok")


def test_doctor_of_a_device_that_is_missing_says_which_there_are(shelf, run):
    shelf.add("acme-gpu")

    result = run("doctor", "--device", "acme:7")

    assert result.exit_code == 1
    assert "acme:7: find: there is no such device; devices: acme:0" in result.stdout


def test_doctor_in_words(shelf, run):
    shelf.add("acme-gpu")

    lines = run("doctor").stdout.splitlines()

    assert lines[1].endswith("  acme:0: open, memory, compute, close ok")
    assert lines[-1] == "everything works"


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("alloc", "acme:0: memory: OutOfMemory: acme:0: alloc failed as the test planned"),
        ("write", "acme:0: memory: DeviceError: acme:0: write failed as the test planned"),
        ("compute", "acme:0: compute: DeviceError: acme:0: compute failed as the test planned"),
    ],
)
def test_doctor_says_at_which_step_a_device_fails(shelf, run, fault, problem):
    body = f"d = NullDevice('acme:0'); d.fail('{fault}'); return [d]"
    shelf.add("acme-gpu", plugin_source(devices=body))

    result = run("doctor")

    assert result.exit_code == 1
    assert result.stdout.splitlines()[1].endswith(problem)
    assert result.stdout.splitlines()[-1] == "something is wrong"


def test_doctor_finds_wrong_numbers(shelf, run):
    kernel = "{'add': lambda node, out, a, b: out.fill(7)}"
    shelf.add("acme-gpu", plugin_source(devices=f"return [NullDevice('acme:0', kernels={kernel})]"))

    result = run("doctor")

    assert result.exit_code == 1
    assert "acme:0: compute: DeviceError: " in result.stdout


def test_doctor_finds_memory_that_forgets(shelf, run):
    forgets = "import tensorplug_testing.null as null\nnull.NullBuffer._read = lambda *_: None\n"
    shelf.add("acme-gpu", plugin_source(top=forgets))

    result = run("doctor")

    assert result.exit_code == 1
    assert "acme:0: memory: DeviceError: 1048576 bytes did not come back as they" in result.stdout


@pytest.mark.long
def test_doctor_lets_pass_what_only_cannot_run_here_or_was_switched_off(shelf, run):
    shelf.add("acme-gpu")
    shelf.add("b-gpu", plugin_source(score="return tensorplug.Refusal('no B board')"), name="b")
    shelf.add("c-gpu", "raise ValueError", name="c")

    result = run("doctor", "--json", TENSORPLUG_BACKENDS="acme,b")

    assert result.exit_code == 0
    assert candidates(result)["b"] == ("unsupported", "no B board")
    assert candidates(result)["c"][0] == "disabled"


@pytest.mark.parametrize(
    "environ", [{"TENSORPLUG_BACKENDS": "acme,typo"}, {"TENSORPLUG_DISABLE": "acme"}]
)
def test_doctor_finds_fault_with_variables_that_mean_nothing_or_leave_nothing(shelf, run, environ):
    shelf.add("acme-gpu")

    assert run("doctor", **environ).exit_code == 1


def test_doctor_names_damaged_metadata(shelf, run):
    shelf.add("acme-gpu")
    write_distribution(shelf.folder, "a-wreck", entry_points="[x]\nno equals sign")

    result = run("doctor")

    assert result.exit_code == 1
    assert [line.split()[:4] for line in result.stdout.splitlines() if "a-wreck" in line] == [
        ["-", "a-wreck", "1.0", "failed"]
    ]


@pytest.mark.long
def test_doctor_and_safe_info_say_who_stands_for_a_name_offered_twice(shelf, run):
    shelf.add("acme-plain", plugin_source(score="return 5"))
    shelf.add("acme-simd", plugin_source(score="return 20"))

    for command in (("doctor", "--json"), ("info", "--safe", "--json")):
        answer = json.loads(run(*command).stdout)
        offers = [c for c in answer["candidates"] if c["name"] == "acme"]

        assert {c["distribution"]: c["state"] for c in offers} == {
            "acme-simd 1.0": "ready",
            "acme-plain 1.0": "superseded",
        }


def test_plugins_may_print_what_they_like(shelf, run):
    shelf.add("acme-gpu", "print('{hello}')\n" + plugin_source())

    assert json.loads(run("doctor", "--json").stdout)["healthy"]


# --- explain -----------------------------------------------------------------------------------


def test_explain_says_what_runs_where_and_why(shelf, run):
    shelf.add("acme-gpu", plugin_source(devices=CPU.replace("cpu:0", "acme:0")))

    result = run("explain", "--example")

    assert result.exit_code == 0
    assert "split 0 on acme:0" in result.stdout
    assert "its weights up lie in acme:0" in result.stdout


def test_explain_takes_devices_in_the_order_given(shelf, run):
    gpu = "NullDevice('acme:0', ops={'mul_mat'})"
    cpu = "NullDevice('acme:1', host=True)"
    shelf.add("acme-gpu", plugin_source(devices=f"return [{gpu}, {cpu}]"))

    result = run(*("explain", "--example", "--json", "--device", "acme:0", "--device", "acme:1"))

    nodes = json.loads(result.stdout)["nodes"]
    assert [(n["op"], n["device"]) for n in nodes] == [
        ("mul_mat", "acme:0"),
        *((op, "acme:1") for op in ("relu", "mul_mat", "add", "soft_max")),
    ]
    assert {n["op"]: n["refusals"] for n in nodes}["relu"] == {"acme:0": "acme:0: does not do relu"}


def test_explain_does_without_devices_that_cannot_work_together(shelf, run):
    shelf.add(
        "acme-gpu", plugin_source(devices="return [NullDevice('acme:0'), NullDevice('acme:1')]")
    )

    result = run("explain", "--example", "--json")

    assert json.loads(result.stdout)["splits"] == ["acme:0"]


def test_explain_says_how_tensors_are_cut_over_several_devices(shelf, run, tmp_path):
    both = "NullDevice('acme:0', host=True), NullDevice('acme:1', host=True)"
    shelf.add("acme-gpu", plugin_source(devices=f"return [{both}]"))
    arguments = ("--device", "meta:acme:0+acme:1?ratio=3,1", "--html", tmp_path / "page.html")

    result = run("explain", "--example", *arguments)

    note = "axis 0: 192+64: runs on parts with w cut along 1"
    assert result.exit_code == 0
    assert note in result.stdout
    assert note in (tmp_path / "page.html").read_text()


def test_explain_draws_a_page(shelf, run, tmp_path):
    shelf.add("acme-gpu", plugin_source(devices=CPU.replace("cpu:0", "acme:0")))

    result = run("explain", "--example", "--html", tmp_path / "page.html")

    page = (tmp_path / "page.html").read_text()
    assert result.exit_code == 0
    assert "split 0 on acme:0" in result.stdout
    assert "<title>The example on acme:0</title>" in page
    assert page.count('class="row ') == 5


def test_explain_shows_what_may_run_side_by_side(shelf, run):
    shelf.add("acme-gpu", plugin_source(devices=CPU.replace("cpu:0", "acme:0")))

    result = run("explain", "--example", "--ahead", "64")

    assert result.exit_code == 0
    assert "split 0 on acme:0: 3 barriers among 4 pieces of work" in result.stdout


def test_explain_reads_a_saved_graph(shelf, run, tmp_path):
    shelf.add("acme-gpu", plugin_source(devices=CPU.replace("cpu:0", "acme:0")))
    x = tp.input("x", (2, 3), tp.F32)
    graphfile.save(tp.Graph((x + x).named("twice")), tmp_path / "graph.json")

    result = run("explain", tmp_path / "graph.json")

    assert "twice  add  f32[2, 3]" in result.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux only")
def test_explain_draws_a_page_of_a_file_whose_name_is_no_text(shelf, run, tmp_path):
    shelf.add("acme-gpu", plugin_source(devices=CPU.replace("cpu:0", "acme:0")))
    file = tmp_path / "x\udcff.graph"
    x = tp.input("x", (2, 3), tp.F32)
    graphfile.save(tp.Graph(x + x), file)

    result = run("explain", file, "--html", tmp_path / "page.html")

    assert result.exit_code == 0
    assert r"<title>x\udcff.graph on acme:0</title>" in (tmp_path / "page.html").read_text()


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("explain",), 2, "error: explain: give either a FILE or --example"),
        (
            ("explain", "--example", "--device", "acme:x:"),
            1,
            "error: acme:x:: acme has 1 device: acme:0",
        ),
        (
            ("explain", "--example", "--device", "@"),
            2,
            "error: device string '@': no name to look for; write "
            "NAME[@DISTRIBUTION][:INDEX][?KEY=VALUE&...]",
        ),
        (
            ("explain", "--example", "--device", "acne"),
            1,
            "error: acne: no installed backend has this name; did you mean 'acme'?",
        ),
        (
            ("explain", "nowhere"),
            1,
            "error: graph file 'nowhere': cannot be read: No such file or directory",
        ),
    ],
)
def test_an_error_is_one_paragraph_on_stderr(shelf, run, arguments, status, text):
    shelf.add("acme-gpu")

    result = run(*arguments)

    assert (result.exit_code, result.stdout, result.stderr) == (status, "", text + "\n")


@pytest.mark.parametrize(
    "arguments", [("doctor", "--timeout", "soon"), ("nonsense",), ("info", "-x")]
)
def test_usage_errors_exit_with_2(run, arguments):
    result = run(*arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: ")


@pytest.mark.parametrize(
    ("switches", "environ"), [(("--traceback",), {}), ((), {"TENSORPLUG_TRACEBACK": "1"})]
)
def test_a_traceback_is_shown_to_those_who_ask(run, switches, environ):
    result = run("explain", "--example", "--device", "nowhere", *switches, **environ)

    assert isinstance(result.exception, tp.BackendNotFound)


def test_help_is_plain_text(run):
    result = run("info", "--help")

    assert result.exit_code == 0
    assert "List every backend with its state, and every device." in result.stdout
    assert "\x1b" not in result.stdout
    assert "─" not in result.stdout

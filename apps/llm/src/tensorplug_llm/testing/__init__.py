"""Tests of language models for plugins: inherit `ModelTests`. Needs `tensorplug-llm[testing]`."""

from tensorplug_llm.testing.lone import LoneText
from tensorplug_llm.testing.model_tests import ModelTests, TinyCase, distance

__all__ = ["LoneText", "ModelTests", "TinyCase", "distance"]

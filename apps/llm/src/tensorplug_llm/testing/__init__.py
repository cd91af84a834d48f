"""Tests of language models for plugins: inherit `ModelTests` and `CacheTests`.

Needs `tensorplug-llm[testing]`.
"""

from tensorplug_llm.testing.lone import LoneText
from tensorplug_llm.testing.model_tests import CacheTests, ModelTests, TinyCase, distance

__all__ = ["CacheTests", "LoneText", "ModelTests", "TinyCase", "distance"]

"""Tests of language models for plugins: inherit `ModelTests`, `RealModelTests` and `CacheTests`.

Needs `tensorplug-llm[testing]`.
"""

from tensorplug_llm.testing.lone import LoneText
from tensorplug_llm.testing.model_tests import (
    CacheTests,
    ModelTests,
    RealModelTests,
    TinyCase,
    distance,
)

__all__ = ["CacheTests", "LoneText", "ModelTests", "RealModelTests", "TinyCase", "distance"]

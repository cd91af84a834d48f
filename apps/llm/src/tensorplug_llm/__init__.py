"""Generates text from GGUF language models on any mix of tensorplug devices."""

from tensorplug.gguf import WeightMode
from tensorplug_llm.engine import Engine, QueueFull
from tensorplug_llm.model import LanguageModel, load_model
from tensorplug_llm.models import find_model
from tensorplug_llm.opening import LoRA
from tensorplug_llm.sampling import Sampler, SamplingParams

__all__ = [
    "Engine",
    "LanguageModel",
    "LoRA",
    "QueueFull",
    "Sampler",
    "SamplingParams",
    "WeightMode",
    "find_model",
    "load_model",
]

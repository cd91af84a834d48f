"""The next token from a model's logits: what is asked for, the rules, the sampler of a text."""

from tensorplug_llm.sampling.grammar import Grammars
from tensorplug_llm.sampling.params import SamplingParams
from tensorplug_llm.sampling.sampler import Sampled, Sampler, check_biases

__all__ = ["Grammars", "Sampled", "Sampler", "SamplingParams", "check_biases"]

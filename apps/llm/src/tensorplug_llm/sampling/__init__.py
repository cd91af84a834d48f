"""The next token from a model's logits: what is asked for, the rules, the sampler of a text."""

from tensorplug_llm.sampling.grammar import GrammarConstraint, Grammars
from tensorplug_llm.sampling.params import MOST_CONSTRAINT, SamplingParams
from tensorplug_llm.sampling.sampler import Sampled, Sampler, check_biases

__all__ = [
    "MOST_CONSTRAINT",
    "GrammarConstraint",
    "Grammars",
    "Sampled",
    "Sampler",
    "SamplingParams",
    "check_biases",
]

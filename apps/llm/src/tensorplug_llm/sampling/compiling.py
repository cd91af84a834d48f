"""Compiles a grammar for a vocabulary of bytes, to see that this comes to an end.

Some grammars of a few bytes take minutes and gigabytes (`{"multipleOf": 9999991}`), and nothing can
stop llguidance at it, so `tensorplug_llm.sampling.grammar` runs this file by
`tensorplug_llm.limited` before it compiles the grammar for the vocabulary of a model.
"""

from functools import cache

import llguidance

END = 256
"""The token that ends a text; those before it are the bytes."""


class _Bytes:
    eos_token_id = END
    bos_token_id = None
    tokens = [*(bytes([value]) for value in range(END)), b"</s>"]
    special_token_ids = [END]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@cache
def _vocabulary() -> llguidance.LLTokenizer:
    wrapper = llguidance.TokenizerWrapper(_Bytes())
    return llguidance.LLTokenizer(wrapper, eos_token=END, slices=[])


def answer(grammar: str) -> None:
    """Compile a grammar of llguidance until its first token could be chosen; errors are ignored."""
    llguidance.LLMatcher(_vocabulary(), grammar, log_level=0).compute_bitmask()

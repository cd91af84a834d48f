"""`generate`: the token ids that continue a session's text, one by one."""

from collections.abc import Iterator, Sequence

from tensorplug_llm.sampling import Sampler, SamplingParams
from tensorplug_llm.session import Session


def generate(
    session: Session,
    prompt: Sequence[int],
    *,
    tokens: int = 128,
    sampler: Sampler | None = None,
) -> Iterator[int]:
    """Yield up to `tokens` ids that continue what `session` has read and `prompt`.

    Ends before a token that ends the text, and where the context is full. Without a sampler each id
    is the most likely one.
    """
    sampler = sampler or Sampler(SamplingParams(temperature=0.0))
    tokenizer = session.model.tokenizer
    text = list(prompt)
    logits = session.prefill(text)
    for number in range(tokens):
        # Embedding tables may have rows to spare, which are no tokens.
        chosen = sampler.next(logits[: tokenizer.vocab_size], text).token
        if chosen in tokenizer.end_of_generation:
            return
        text.append(chosen)
        yield chosen
        if number + 1 == tokens or session.position == session.context:
            return
        logits = session.decode(chosen)

"""Text to token ids and back, by what a GGUF file says about its tokenizer."""

from tensorplug_llm.tokenizer.stream import StreamDecoder
from tensorplug_llm.tokenizer.tokenizer import Tokenizer, load_tokenizer

__all__ = ["StreamDecoder", "Tokenizer", "load_tokenizer"]

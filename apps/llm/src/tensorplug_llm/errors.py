"""Errors that tell callers apart what OptionError would not."""

from tensorplug.errors import OptionError


class PromptTooLong(OptionError):
    """A prompt leaves no room for an answer in the context."""

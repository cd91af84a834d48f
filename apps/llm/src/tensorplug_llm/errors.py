"""Errors that tell callers apart what OptionError would not."""

from tensorplug.errors import OptionError, TensorplugError


class PromptTooLong(OptionError):
    """A prompt leaves no room for an answer in the context."""


class EngineFailed(TensorplugError):
    """An engine takes no texts any more; its cause is the error that ended those it had."""

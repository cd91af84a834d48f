"""The command `tensorplug-llm`; imports the package only where signals are watched."""

import gc

from tensorplug_console import run


def main() -> None:
    """The command `tensorplug-llm`."""
    # Until a model is loaded: what start-up makes stays, and looking through it takes 40 ms.
    gc.disable()
    run("tensorplug_llm.cli")

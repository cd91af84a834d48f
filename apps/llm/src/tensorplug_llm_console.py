"""The command `tensorplug-llm`; imports the package only where signals are watched."""

from tensorplug_console import run


def main() -> None:
    """The command `tensorplug-llm`."""
    run("tensorplug_llm.cli")

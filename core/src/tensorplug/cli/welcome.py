"""What `tensorplug` prints without a subcommand: what is installed, and what to do with it."""

from tensorplug.cli.commands import GROUP, KNOWN
from tensorplug.registry import Registry
from tensorplug.registry.candidate import State
from tensorplug.registry.discovery import offers
from tensorplug.text import table

EVERYWHERE = (
    ("tensorplug info", "every backend and device, with its state and the reason"),
    ("tensorplug explain --example", "where a small graph runs, and why"),
    ("tensorplug doctor", "probe every backend in a process of its own"),
    ("tensorplug trace -- program.py", "record what ran when"),
    ("tensorplug new-backend acme", "write a backend from a template"),
)
FOREIGN = {
    "test": ("tensorplug test --device cpu --tier smoke", "check a device with the kit"),
    "quantize": ("tensorplug quantize IN.gguf OUT.gguf --type q4_K", "make a model file smaller"),
}
"""For commands of other distributions: how to call them, and what they do."""
LLM = "tensorplug-llm"
MODELS = (f"{LLM} generate smollm2-135m --prompt TEXT", "continue a text with a language model")


def welcome(registry: Registry) -> str:
    """What can be done with what is installed. Reads metadata of distributions only."""
    found = registry.scan().candidates
    names = dict.fromkeys(c.name for c in found if c.state is not State.DISABLED)
    commands = {offer.entry.name for offer in offers(GROUP)}
    models = any(offer.entry.name == LLM for offer in offers("console_scripts"))
    rows = [*EVERYWHERE, *(FOREIGN[name] for name in FOREIGN if name in commands)]
    rows += [MODELS] if models else []
    missing = {KNOWN[name].extra: line[1] for name, line in FOREIGN.items() if name not in commands}
    missing |= {} if models else {"llm": MODELS[1]}
    missing |= {} if names else {"cpu": "compute anything"}
    lines = [f"installed backends: {', '.join(names) or 'none'}", ""]
    lines += table(("command", "to"), [(call, what) for call, what in rows])
    if missing:
        lines += ["", *(f"pip install 'tensorplug[{x}]' to {what}" for x, what in missing.items())]
    return "\n".join([*lines, "", "tensorplug --help lists all commands"])

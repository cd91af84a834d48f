"""The patterns of groups that may be named in messages."""

from collections.abc import Mapping

from tensorplug.device import Pattern
from tensorplug.fusion.library import PATTERNS

KNOWN: Mapping[str, Pattern] = {pattern.name: pattern for pattern in PATTERNS}
"""The patterns of core by name. A pattern of another distribution stays on its own machine."""

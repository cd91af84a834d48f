"""The registry of backends: finds installed plugins, loads them, and opens their devices."""

from tensorplug.registry.registry import SELECTORS, Registry

__all__ = ["SELECTORS", "Registry"]

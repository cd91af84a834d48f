"""The shared lowerings, by family. Importing this module fills `SHARED`."""

from tensorplug_simt.families import elementwise

__all__ = ["elementwise"]

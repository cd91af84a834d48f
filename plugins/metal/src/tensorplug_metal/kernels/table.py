"""The lowerings to kernels of this backend's own."""

from tensorplug_simt.lowering import GroupLowering, Lowering

OWN: dict[str, Lowering] = {}
"""By op; comes before the shared lowerings."""

GROUPS: dict[str, GroupLowering] = {}
"""By fusion pattern."""

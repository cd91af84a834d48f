"""How many items a group has that takes a row: more where rows are longer."""

from tensorplug_simt.facts import Facts

LARGEST = 512
"""Items of a group; each has several elements of a row of thousands."""
EACH = 4
"""Elements of a row that are worth an item."""


def group_size(length: int, facts: Facts) -> int:
    """Items for a row of `length`: whole warps, a power of two."""
    size, largest = 32, min(LARGEST, facts.max_group)
    while size < largest and size * EACH < length:
        size *= 2
    return size

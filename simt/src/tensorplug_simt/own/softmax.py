"""Numbers of softmax and attention."""


def largest_power(heads: int) -> int:
    """The largest power of two that is at most `heads`: how many slopes belong to one base."""
    return 1 << (max(heads, 1).bit_length() - 1)

"""From a use of one of our ops to the builder of ggml that means the same, by families.

A builder gets the library and a `Use`: the sources as pointers to tensors of ggml, our parameters
by name, and type, sizes and strides of our node and of its sources.
"""

from oracle.builders import copies, elementwise, products, sequence, spatial, training, views
from oracle.builders.table import BUILDERS, Use

FAMILIES = (views, elementwise, copies, products, training, sequence, spatial)
"""The modules that fill the table."""

__all__ = ["BUILDERS", "FAMILIES", "Use"]

"""Planning: which device computes each node, in which order and memory. Calls no stream."""

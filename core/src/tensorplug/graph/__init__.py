"""What to compute: tensors, graphs, and which memory each tensor has."""

"""Groups of nodes that one kernel computes: patterns, matching and a library of patterns."""

"""Fusion: patterns of nodes that one kernel can compute, matching, and a library of patterns."""

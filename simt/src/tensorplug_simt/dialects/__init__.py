"""Dialects: how one kernel text is spelled in each language."""

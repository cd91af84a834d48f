"""Looks at what runs: traces, the sanitizer, comparisons, graph files, pages."""

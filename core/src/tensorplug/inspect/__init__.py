"""Inspection of graphs and runs: traces, race detection, comparison, graph files, HTML pages."""

"""Subcommands of `tensorplug` that this distribution brings."""

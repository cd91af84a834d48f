"""Subcommands of `tensorplug` of this distribution."""

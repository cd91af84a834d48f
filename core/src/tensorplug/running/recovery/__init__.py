"""Goes on after a device was lost. Nothing on the normal path calls it."""

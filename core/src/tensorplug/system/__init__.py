"""Operating system services: locks after a fork, atomic file replacement, a file cache."""

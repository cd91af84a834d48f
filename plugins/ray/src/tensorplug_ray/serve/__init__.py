"""Replicas of the server of tensorplug-llm on Ray Serve: `python -m tensorplug_ray.serve MODEL`."""

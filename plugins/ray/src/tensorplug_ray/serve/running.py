"""`serve`: deploys replicas of a model, and the front before them, on Ray Serve."""

import os
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve as ray_serve

from tensorplug.errors import DeviceError
from tensorplug_ray import cluster, trust
from tensorplug_ray.config import OWN, Config
from tensorplug_ray.link import last_error
from tensorplug_ray.serve.front import Front
from tensorplug_ray.serve.replica import Replica, Settings

NAME = "tensorplug"
DRAIN = 30.0
"""Seconds that running requests have when a replica is ended."""
CHECKS = 2.0
"""Seconds between two checks of a replica; Ray Serve replaces it after three that failed."""


def serve(
    settings: Settings,
    *,
    replicas: int = 1,
    most: int | None = None,
    address: str = OWN,
    host: str = "127.0.0.1",
    port: int = 8080,
    insecure: bool = False,
    resources: Mapping[str, Any] | None = None,
) -> None:
    """Start `replicas` of a model behind one HTTP address, and return when they answer.

    With `most` their number follows the requests that wait and run, up to that. `resources` are
    options of Ray for each replica, such as `{"num_gpus": 1}`. Ends with `ray.serve.shutdown()`,
    and with the process where it started the cluster. Raises OptionError, DeviceError.
    """
    config = Config((), address, insecure)
    trust.prepare(config)
    os.environ.setdefault(
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60"
    )  # 5 s kill a slow machine's
    cluster.connect(config)
    cluster.check_cluster(config)
    ray_serve.start(http_options={"host": host, "port": port})
    options: dict[str, Any] = {"num_replicas": replicas}
    if most is not None:
        options = {
            "autoscaling_config": {
                "min_replicas": replicas,
                "max_replicas": most,
                "target_ongoing_requests": settings.texts,
            }
        }
    engines = ray_serve.deployment(
        Replica,
        name="replica",
        max_ongoing_requests=settings.texts + settings.queue,
        graceful_shutdown_timeout_s=DRAIN,
        health_check_period_s=CHECKS,
        ray_actor_options={"num_cpus": 0, **(resources or {})},
        **options,
    ).bind(settings)
    front = ray_serve.deployment(
        ray_serve.ingress(made_front)(),
        name="front",
        max_ongoing_requests=10_000,
        graceful_shutdown_timeout_s=2 * DRAIN,  # it passes on what the replicas answer
        ray_actor_options={"num_cpus": 0},
    ).bind(engines)
    try:
        ray_serve.run(front, name=NAME, route_prefix="/")
    except RuntimeError as error:
        raise DeviceError(
            f"serve: no replica of {settings.model} starts on {', '.join(settings.devices)}: "
            f"{reason(ray_serve.status())}"
        ) from error


def reason(status: Any) -> str:
    """What Ray Serve says of the replicas that do not start."""
    told = [str(found.message) for found in status.applications[NAME].deployments.values()]
    return last_error("\n".join(told))


def made_front() -> Front:
    """The front, made in the process that runs it."""
    return Front(ray_serve.get_deployment_handle("replica", app_name=NAME))


def end() -> None:
    """End the replicas when they have answered, and the cluster if this process started it."""
    if not ray.is_initialized():
        return
    ray_serve.delete(NAME)
    ray_serve.shutdown()
    ray.shutdown()

"""`serve`: deploys replicas of a model, and the front before them, on Ray Serve."""

import logging
import os
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve as ray_serve
from ray.exceptions import RayError
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException

from tensorplug.errors import DeviceError, OptionError
from tensorplug_ray import cluster, trust
from tensorplug_ray.config import OWN, Config
from tensorplug_ray.link import last_error, line_of
from tensorplug_ray.serve.front import Front
from tensorplug_ray.serve.replica import Replica, Settings

NAME = "tensorplug"
DRAIN = 30.0
"""Seconds that running requests have when a replica is ended."""
CHECKS = 2.0
"""Seconds between two checks of a replica; Ray Serve replaces it after three that failed."""
ERRORS = (RayError, RayServeException, RuntimeError, ValueError, TimeoutError)
"""What Ray Serve raises."""

logger = logging.getLogger("tensorplug_ray.serve")


class _Made:
    """What this process made in its cluster, which `end` takes away."""

    serve = False
    app = False


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
    options of Ray for each replica, such as `{"num_gpus": 1}`. `end` ends what this made, also
    after an error. Raises OptionError, DeviceError.
    """
    config = Config((), address, insecure)
    trust.prepare(config)
    os.environ.setdefault(
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60"
    )  # 5 s kill a slow machine's
    cluster.connect(config)
    cluster.check_cluster(config)
    _start(host, port)
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
        # It passes on what the replicas answer; `ray_serve.delete` waits for 60 s.
        graceful_shutdown_timeout_s=DRAIN + 10,
        ray_actor_options={"num_cpus": 0},
    ).bind(engines)
    _Made.app = _Made.app or NAME not in ray_serve.status().applications
    try:
        ray_serve.run(front, name=NAME, route_prefix="/")
    except ERRORS as error:
        raise DeviceError(
            f"serve: no replica of {settings.model} starts on {', '.join(settings.devices)}: "
            f"{reason(ray_serve.status(), error)}"
        ) from error
    _Made.app = True


def _start(host: str, port: int) -> None:
    """Start Ray Serve unless the cluster runs it. Raises OptionError, DeviceError."""
    try:
        if _get_global_client(raise_if_no_controller_running=False) is None:
            _Made.serve = True
        ray_serve.start(http_options={"host": host, "port": port})
        found = _get_global_client().http_config
    except ERRORS as error:
        raise DeviceError(
            f"serve: Ray Serve does not start on {host}:{port}: {line_of(error)}"
        ) from error
    if (found.host, found.port) != (host, port):
        raise OptionError(
            f"serve: Ray Serve of this cluster listens on {found.host}:{found.port}, not on "
            f"{host}:{port}; give --host {found.host} --port {found.port}, or end all that it "
            "serves: `serve shutdown` of Ray"
        )


def reason(status: Any, error: Exception) -> str:
    """What Ray Serve says of the replicas that do not start, or of the error that came before."""
    found = status.applications.get(NAME)
    told = [str(part.message) for part in found.deployments.values()] if found else [str(error)]
    return last_error("\n".join(told))


def made_front() -> Front:
    """The front, made in the process that runs it."""
    return Front(ray_serve.get_deployment_handle("replica", app_name=NAME))


def end() -> None:
    """End what this process made: replicas when they have answered, Ray Serve, and the cluster.

    An app that another process deployed, or another's Ray Serve, goes on.
    """
    if not ray.is_initialized():
        return
    if _Made.app:
        try:
            ray_serve.delete(NAME)
        except ERRORS as error:
            logger.warning("the replicas have not ended: %s", line_of(error))
    if _Made.serve:
        ray_serve.shutdown()
    _Made.app = _Made.serve = False
    ray.shutdown()

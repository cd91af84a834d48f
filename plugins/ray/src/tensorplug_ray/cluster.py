"""The connection of this process to a Ray cluster."""

import socket
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from tensorplug.errors import DeviceError, OptionError
from tensorplug_ray.config import OWN, Config, DeviceEntry
from tensorplug_ray.link import line_of
from tensorplug_ray.trust import authentication
from tensorplug_ray.worker import Worker

OWN_MEMORY = 256 << 20
"""Bytes of the object store of a cluster that this process starts."""


ANY = "auto"
"""The address of whichever cluster Ray finds."""
CHECK = 60.0
"""Seconds in which a cluster must run a task, a new process of Python at first."""
_connected = ("", "")
"""What this process asked for when it connected last, and the address of the cluster it got."""


def connect(config: Config) -> None:
    """Connect to the cluster, or start one on this machine. Raises DeviceError, OptionError.

    A program that has called ray.init() itself, and names no cluster here, goes on with that one.
    """
    global _connected  # noqa: PLW0603 - as Ray, a process has one cluster
    if ray.is_initialized():
        _check_same(config.address)
        return
    own: dict[str, Any] = {}
    if config.address == OWN:
        own = {"include_dashboard": False, "object_store_memory": OWN_MEMORY, "num_cpus": 1}
    try:
        ray.init(address=config.address, log_to_driver=False, configure_logging=False, **own)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise DeviceError(
            f"ray: cannot connect to the cluster at {config.address}: {line_of(error)}; see "
            "`ray status` there, and give both machines the same token and version of Ray"
        ) from error
    _connected = (config.address, ray.get_runtime_context().gcs_address)


def _check_same(address: str) -> None:
    """Raise OptionError unless the cluster of this process is the one at `address`."""
    here = ray.get_runtime_context().gcs_address
    asked, got = _connected
    # A cluster that the program connected to by ray.init() was not asked for here.
    known = asked if got == here else OWN
    if address not in (known, ANY) and _place_of(address) != _place_of(here):
        raise OptionError(
            f"ray: this process uses the cluster at {here}, not {address}; call "
            "ray.shutdown() before it uses another one"
        )


def _place_of(address: str) -> str:
    """An address of a cluster with the number of its machine, or as it is if that is not found."""
    try:
        host, _, port = address.rpartition(":")
        number = socket.gethostbyname(host)
        if number.startswith("127."):
            number = ray.util.get_node_ip_address()
        return f"{number}:{port}"
    except OSError:
        return address


def check_cluster(config: Config) -> None:
    """Raise OptionError if the cluster asks for no token, unless the configuration allows that.

    A task asks it. Raises DeviceError where none runs within CHECK seconds.
    """
    if config.insecure:
        return
    try:
        mode = ray.get(ray.remote(num_cpus=0)(authentication).remote(), timeout=CHECK)
    except (RayError, GetTimeoutError) as error:
        raise DeviceError(f"ray: the cluster at {config.address}: {line_of(error)}") from error
    check_mode(mode, config)


def check_mode(mode: str, config: Config) -> None:
    """Raise OptionError if a node's mode of authentication is not one that is allowed."""
    if mode != "token" and not config.insecure:
        raise OptionError(
            f"ray: the cluster at {config.address} asks for no token (RAY_AUTH_MODE is {mode} "
            "there): whoever reaches it can run programs on it; start it with RAY_AUTH_MODE=token, "
            "or allow this with insecure=True"
        )


def start_actor(entry: DeviceEntry) -> Any:
    """Start the actor of a device on its node. Does not wait."""
    options: dict[str, Any] = {"num_cpus": 0, "num_gpus": entry.gpus}
    if entry.resources:
        options["resources"] = dict(entry.resources)
    if entry.labels:
        options["label_selector"] = dict(entry.labels)
    if entry.node:
        options["resources"] = {**entry.resources, _node_resource(entry.node): 0.001}
    # What an actor holds dies with its process, so a restarted one would know none of the numbers.
    return ray.remote(max_restarts=0, max_task_retries=0, **options)(Worker).remote()


def _node_resource(name: str) -> str:
    """The resource that only the node with this host name or address has. Raises OptionError."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    for node in nodes:
        if name in (node["NodeManagerHostname"], node["NodeManagerAddress"]):
            return f"node:{node['NodeManagerAddress']}"
    known = ", ".join(f"{n['NodeManagerHostname']} ({n['NodeManagerAddress']})" for n in nodes)
    raise OptionError(f"ray: no node is called {name!r}; nodes of the cluster: {known}")

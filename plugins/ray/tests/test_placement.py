"""Where actors run: a cluster of two nodes on this machine, one of which is removed."""

import os
import time

import numpy as np
import pytest

import tensorplug as tp
from tensorplug.errors import DeviceError, OptionError

pytestmark = pytest.mark.skipif(
    "RAY_ADDRESS" in os.environ, reason="these tests start a cluster of their own"
)
X = np.ones((2, 8), np.float32)


@pytest.fixture(scope="module")
def nodes():
    """The address of a cluster, and the node that is not its head."""
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()
    head = {"num_cpus": 1, "resources": {"left": 1}, "labels": {"rack": "1"}}
    made = Cluster(initialize_head=True, head_node_args={**head, "include_dashboard": False})
    node = made.add_node(num_cpus=1, resources={"right": 1}, labels={"rack": "2"})
    yield made, node
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def opened(nodes):
    """A function that opens devices in the cluster of two nodes."""
    from tensorplug_ray import trust
    from tensorplug_ray.config import Config, entries
    from tensorplug_ray.device import devices_of

    found = []

    def open_devices(*tables, limit=60.0):
        config = Config(entries(tables), nodes[0].address, limit=limit)
        trust.prepare(config)
        found.extend(devices_of(config))
        return found

    yield open_devices
    for device in found:
        device.close(force=True)


def node_of(device):
    """The id of the node on which the actor of a device runs."""
    import ray

    return ray._private.state.actors(device.link.actor._actor_id.hex())["Address"]["NodeID"]


@pytest.mark.parametrize("key", ["resources", "labels"])
def test_actor_runs_where_a_resource_or_a_label_says(nodes, opened, key):
    wanted = {
        "resources": ({"left": 0.1}, {"right": 0.1}),
        "labels": ({"rack": "1"}, {"rack": "2"}),
    }

    devices = opened(*({"open": "cpu?threads=1", key: table} for table in wanted[key]))

    ids = [node.node_id for node in (nodes[0].head_node, nodes[1])]
    assert [node_of(device) for device in devices] == ids


@pytest.mark.parametrize("by", ["NodeManagerAddress", "NodeManagerHostname"])
def test_node_is_found_by_its_address_and_by_its_name(opened, by):
    import ray

    opened("cpu?threads=1")  # connects
    name = ray.nodes()[0][by]

    *_, device = opened({"open": "cpu?threads=1", "node": name})

    assert device.node == os.uname().nodename


def test_unknown_node_is_refused_with_those_of_the_cluster(opened):
    with pytest.raises(OptionError, match=f"no node is called 'attic'.*{os.uname().nodename}"):
        opened({"open": "cpu", "node": "attic"})


def test_place_that_no_node_has_is_an_error_after_a_while(opened, monkeypatch):
    monkeypatch.setattr("tensorplug_ray.device.START", 2.0)

    with pytest.raises(DeviceError, match="no answer within 2 s"):
        opened({"open": "cpu", "resources": {"elsewhere": 1}}, limit=1.0)


def test_run_goes_on_without_the_node_that_was_removed(nodes, opened):
    table = {"open": "cpu?threads=1", "labels": {"rack": "1"}}
    devices = opened(table, {**table, "labels": {"rack": "2"}})
    w = [np.random.default_rng(i).standard_normal((8, 8), dtype=np.float32) for i in range(2)]
    x = tp.input("x", X.shape, tp.F32)
    with devices[0].open() as a, devices[1].open() as b, tp.open("cpu") as host:
        one = a.place("one", w[0], usage=tp.WEIGHTS)
        two = b.place("two", w[1], usage=tp.WEIGHTS)
        y = (x @ one.T) @ two.T
        with tp.Scheduler([a, b, host], on_failure="replan") as scheduler:
            scheduler.add_sources({one: lambda: w[0], two: lambda: w[1]})
            run = scheduler.schedule(y)
            wanted = run.run({x: X})[y]
            nodes[0].remove_node(nodes[1], allow_graceful=False)

            end = time.monotonic() + 180
            while not devices[1].link.lost:  # an actor may answer until it sees that
                assert time.monotonic() < end
                found = run.run({x: X})[y]
                np.testing.assert_allclose(found, wanted, rtol=1e-5)

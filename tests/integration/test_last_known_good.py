"""Control planes die, one of several or all of them, and Envoys start without any.

Everything is real but the engines: the programs are started and killed as processes.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.load import Load
from tests.support.mesh import EngineSetup, chat_body
from tests.support.mesh_replicas import ReplicatedMesh
from tests.support.processes import children, command_line, wait_until

pytestmark = [pytest.mark.envoy, pytest.mark.consul]

ENGINES = (
    EngineSetup(node="node-a", name="e1", gpu_power=100, extra={"max_num_seqs": 64}),
    EngineSetup(node="node-b", name="e1", gpu_power=100, extra={"max_num_seqs": 64}),
)
NODE_IDS = ["edge-1", "node-a", "node-b"]
RATE_PER_S = 50
# A request limit gives the edge an extension (ECDS) and the number of edges (EDS), too.
POLICY = {"request_limit": {"rate": "1000/s"}}
SMALL_REQUESTS = {**POLICY, "max_request_size": "64KiB"}


@pytest.fixture
def cached_mesh() -> Iterator[ReplicatedMesh]:
    with ReplicatedMesh(ENGINES, policy=POLICY, caches=True) as mesh:
        yield mesh


@pytest.fixture
def replicated_mesh() -> Iterator[ReplicatedMesh]:
    with ReplicatedMesh(ENGINES, policy=POLICY, replicas=3) as mesh:
        yield mesh


def load_on(mesh: ReplicatedMesh) -> Load:
    body = chat_body(stream=True)
    return Load(f"{mesh.edge_url}/v1/chat/completions", body, rate_per_s=RATE_PER_S)


def refuses_large_requests(mesh: ReplicatedMesh) -> bool:
    """Whether the edge has the policy that came last."""
    return mesh.chat(padding="x" * 100_000).status_code == 413


def updates(mesh: ReplicatedMesh) -> dict[str, int]:
    """Return how many updates the Envoys took, by what they concern.

    The edges' own cluster is left out: a control plane that starts knows of no edge at first.
    """
    return {
        f"{which} {name}": value
        for which in ("edge", *mesh.nodes)
        for name, value in mesh.envoy(which).stats().items()
        if name.endswith(".update_success") and "local_edges" not in name
    }


def recorded(mesh: ReplicatedMesh) -> bool:
    """Whether each Envoy's cache holds what that Envoy has now."""
    listeners = {"edge": "edge", "node-a": "mesh", "node-b": "mesh"}
    return all(
        list(Path(f"{mesh.root}/lkg-{which}").glob("manifest.json"))
        and mesh.envoy(which).stats("listener_manager.total_listeners_active")
        for which in listeners
    )


def kill_envoy_of(mesh: ReplicatedMesh, node: str) -> None:
    (pid,) = [
        pid
        for pid in children(mesh.agents[node].pid)
        if f"{node}.envoy.yaml" in " ".join(command_line(pid))
    ]
    os.kill(pid, signal.SIGKILL)


def test_envoys_that_start_without_a_control_plane_serve_what_they_had(
    cached_mesh: ReplicatedMesh,
) -> None:
    mesh = cached_mesh
    wait_until(lambda: recorded(mesh), "every cache has something", timeout_s=20)
    time.sleep(1.5)  # what came last is recorded at the next poll

    with load_on(mesh) as load:
        time.sleep(1)
        mesh.kill_replica(0)
        time.sleep(2)
    assert not load.failures()

    mesh.restart_edge()
    wait_until(lambda: mesh.chat().status_code == 200, "the new edge serves", timeout_s=15)
    with load_on(mesh) as load:
        time.sleep(5)  # longer than a stream of the cache lasts
    assert not load.failures()
    assert mesh.edge_hosts().keys() == {"node-a", "node-b"}

    kill_envoy_of(mesh, "node-a")
    wait_until(lambda: mesh.healthy_engines("node-a") == {"e1"}, "its successor", timeout_s=20)
    served = mesh.served()[ENGINES[0].id]
    wait_until(
        lambda: mesh.chat().status_code == 200 and mesh.served()[ENGINES[0].id] > served,
        "the node gets requests again",
        timeout_s=20,
    )

    before = updates(mesh)
    with load_on(mesh) as load:
        mesh.start_replica(0)
        wait_until(
            lambda: mesh.everywhere_connected() == NODE_IDS,
            "every Envoy is back at the control plane",
            timeout_s=15,
            processes=mesh.processes,
        )
        time.sleep(1)
    assert not load.failures()
    assert updates(mesh) == before  # nothing that the cache gave them was other

    mesh.write_policy(SMALL_REQUESTS)
    wait_until(lambda: refuses_large_requests(mesh), "news arrive", timeout_s=10)


def test_a_killed_replica_costs_no_request_and_its_envoys_are_elsewhere_at_once(
    replicated_mesh: ReplicatedMesh,
) -> None:
    mesh = replicated_mesh
    wait_until(lambda: mesh.everywhere_connected() == NODE_IDS, "one stream each", timeout_s=10)
    (holder,) = [n for n in range(3) if "edge-1" in mesh.connected(n)]
    with load_on(mesh) as load:
        time.sleep(1)
        mesh.kill_replica(holder)
        killed = time.monotonic()
        wait_until(lambda: mesh.everywhere_connected() == NODE_IDS, "moved", timeout_s=10)
        took_s = time.monotonic() - killed
        mesh.write_policy(SMALL_REQUESTS)
        wait_until(lambda: refuses_large_requests(mesh), "news arrive", timeout_s=10)
        time.sleep(1)
    assert not load.failures()
    assert took_s < 2


def test_a_replica_that_hangs_loses_its_envoys(replicated_mesh: ReplicatedMesh) -> None:
    mesh = replicated_mesh
    (holder,) = [n for n in range(3) if "edge-1" in mesh.connected(n)]
    others = [n for n in range(3) if n != holder]
    hung = mesh.replicas[holder]
    assert hung is not None
    hung.send(signal.SIGSTOP)
    try:
        wait_until(
            lambda: any("edge-1" in mesh.connected(n) for n in others),
            "the edge has left it",
            timeout_s=20,  # HTTP/2's keep-alive: a ping every 10 s, and 5 s to answer
        )
    finally:
        hung.send(signal.SIGCONT)

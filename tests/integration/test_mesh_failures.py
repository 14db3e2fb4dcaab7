"""Parts of a whole mesh die under load: what fails, for how long, and how it comes back.

The engines are simulated; all else is real. Each test leaves the mesh as it found it.
"""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.support.load import Load
from tests.support.mesh import EngineSetup, Mesh, chat_body
from tests.support.processes import children, command_line, wait_until

pytestmark = [pytest.mark.envoy, pytest.mark.consul]

SMALL = EngineSetup(node="node-a", name="e1", gpu_power=100, extra={"max_num_seqs": 64})
LARGE = EngineSetup(node="node-b", name="e1", gpu_power=300, extra={"max_num_seqs": 64})
RATE_PER_S = 50
CONSUL_AWAY_S = float(os.environ.get("WATTMESH_TEST_CONSUL_AWAY_S", "60"))


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh([SMALL, LARGE]) as mesh:
        yield mesh


def load_on(mesh: Mesh, *, max_tokens: int = 4) -> Load:
    body = chat_body(max_tokens=max_tokens, stream=True)
    return Load(f"{mesh.edge_url}/v1/chat/completions", body, rate_per_s=RATE_PER_S)


def test_killed_engine_costs_only_its_streams_and_comes_back(mesh: Mesh) -> None:
    (pid,) = mesh.engine_pids(LARGE)
    with load_on(mesh, max_tokens=40) as load:
        time.sleep(1)
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        wait_until(
            lambda: mesh.engine_pids(LARGE) not in ([], [pid]), "a new engine process", timeout_s=20
        )
        wait_until(lambda: mesh.healthy_engines(LARGE.node), "the node has it", timeout_s=20)
        wait_until(lambda: len(mesh.edge_hosts()) == 2, "the edge has its node", timeout_s=20)
        time.sleep(1)
    assert not [outcome for outcome in load.failures() if not outcome.was_streaming]
    assert not [o for o in load.failures() if o.started_s > killed]
    assert not load.failures(started_after_s=killed + 2)
    served = mesh.served()[LARGE.id]
    wait_until(
        lambda: mesh.chat().status_code == 200 and mesh.served()[LARGE.id] > served,
        "it gets requests again",
        timeout_s=5,
    )


def test_killed_control_plane_is_not_missed_and_repeats_nothing(mesh: Mesh) -> None:
    watched = {"edge": mesh.envoy("edge"), **{node: mesh.envoy(node) for node in mesh.nodes}}
    before = {which: changes(admin.stats()) for which, admin in watched.items()}
    with load_on(mesh) as load:
        mesh.control_plane.kill()
        time.sleep(2)
        mesh.start_control_plane()
        wait_until(
            lambda: mesh.control_plane_metrics().get("wattmesh_xds_streams") == len(watched),
            "all Envoys are connected again",
            timeout_s=20,
            processes=mesh.processes,
        )
        time.sleep(2)
    assert not load.failures()
    assert {which: changes(admin.stats()) for which, admin in watched.items()} == before
    assert mesh.control_plane_metrics().get("wattmesh_xds_resources_sent_total", 0) == 0


@pytest.mark.case("D7")
@pytest.mark.conformance("30")
def test_30_d7_a_control_plane_that_waits_for_consul_takes_nothing_away(mesh: Mesh) -> None:
    watched = {which: mesh.envoy(which) for which in ("edge", *mesh.nodes)}
    before = {which: changes(admin.stats()) for which, admin in watched.items()}
    missed = {which: missing(admin.stats()) for which, admin in watched.items()}
    consul = mesh.consul.process.pid
    with load_on(mesh) as load:
        mesh.control_plane.kill()
        os.kill(consul, signal.SIGSTOP)  # it takes connections, and answers nobody
        try:
            mesh.start_control_plane()
            wait_until(lambda: mesh.admin("/ready").status == 503, "it started", timeout_s=20)
            time.sleep(2)  # Envoys ask again within a second
            assert mesh.admin("/ready").status == 503
            assert mesh.control_plane_metrics().get("wattmesh_xds_streams", 0) == 0
        finally:
            os.kill(consul, signal.SIGCONT)
        wait_until(
            lambda: mesh.control_plane_metrics().get("wattmesh_xds_streams") == len(watched),
            "all Envoys are connected again",
            timeout_s=20,
            processes=mesh.processes,
        )
        time.sleep(1)
    assert not load.failures()
    assert {which: changes(admin.stats()) for which, admin in watched.items()} == before
    assert {which: missing(admin.stats()) for which, admin in watched.items()} == missed


def missing(stats: dict[str, int]) -> dict[str, int]:
    """Return how often an Envoy found a cluster, a route or a healthy host missing, and where."""
    told = (".no_cluster", ".no_route", ".upstream_cx_none_healthy")
    return {k: v for k, v in stats.items() if k.endswith(told)}


def changes(stats: dict[str, int]) -> dict[str, int]:
    """Return the counters that move when an Envoy is told something it does not hold yet."""
    told = ("_added", "_modified", "_removed", "config_reload", "update_rejected")
    places = ("cluster_manager.", "listener_manager.", "http.edge.rds.", "http.mesh.rds.")
    return {k: v for k, v in stats.items() if k.startswith(places) and k.endswith(told)}


def test_consul_gone_and_back_empty_is_not_noticed_by_callers(mesh: Mesh) -> None:
    weights = mesh.edge_hosts()
    with load_on(mesh) as load:
        mesh.consul.stop()
        time.sleep(CONSUL_AWAY_S)
        assert mesh.edge_hosts() == weights
        mesh.consul.start()
        wait_until(
            lambda: mesh.consul.passing_engines() == {SMALL.id, LARGE.id},
            "the engines registered again by themselves",
            timeout_s=20,
        )
        time.sleep(3)
        assert mesh.edge_hosts() == weights
    assert not load.failures()
    mesh.consul.change_metadata(SMALL.id, gpu_power="150")
    wait_until(lambda: mesh.edge_hosts() != weights, "changes arrive again", timeout_s=5)
    mesh.consul.change_metadata(SMALL.id, gpu_power="100")
    wait_until(lambda: mesh.edge_hosts() == weights, "changes arrive again", timeout_s=5)


def test_killed_node_envoy_comes_back(mesh: Mesh) -> None:
    agent = mesh.agents[SMALL.node]
    with load_on(mesh) as load:
        time.sleep(0.5)
        os.kill(envoy_of(mesh, SMALL.node), signal.SIGKILL)
        killed = time.monotonic()
        time.sleep(2)
        wait_until(lambda: mesh.healthy_engines(SMALL.node), "its Envoy is back", timeout_s=20)
        time.sleep(1)
    assert agent.returncode is None
    assert not [outcome for outcome in load.failures() if not outcome.was_streaming]
    assert not load.failures(started_after_s=killed + 2)


def envoy_of(mesh: Mesh, node: str) -> int:
    bootstrap = str(mesh.root / node / f"{node}.envoy.yaml")
    return next(p for p in children(mesh.agents[node].pid) if bootstrap in command_line(p))

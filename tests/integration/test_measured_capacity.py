"""A card declared four times too strong, on a whole mesh: measured under load, and put right.

The engines are simulated; all else is real. `--speedup` slows an engine below what it declares.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import paths, unix_http
from tests.support.load import Load
from tests.support.mesh import EngineSetup, Mesh, chat_body
from tests.support.processes import Process, wait_until

pytestmark = [pytest.mark.envoy, pytest.mark.consul]

SLOW = 0.2  # of the cards' real speed, so that this machine can keep up


def engine(node: str, name: str, declared: float, true: float) -> EngineSetup:
    speedup = SLOW * true / declared
    return EngineSetup(
        node=node,
        name=name,
        gpu_power=declared,
        extra={"max_num_seqs": 64, "args": ["--speedup", f"{speedup}"]},
    )


TRUE = {"node-a.e1": 100, "node-a.e2": 100, "node-b.e1": 200, "node-b.e2": 100}
ENGINES = [
    engine("node-a", "e1", 100, 100),
    engine("node-a", "e2", 100, 100),
    engine("node-b", "e1", 200, 200),
    engine("node-b", "e2", 400, 100),  # the wrong one
]


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh(ENGINES) as mesh:
        yield mesh


def capacities(mesh: Mesh) -> dict[str, float]:
    plan = json.loads(mesh.admin("/v1/plan").text)
    return {engine["id"]: engine["capacity"] for engine in plan["engines"]}


def explained(mesh: Mesh, engine_id: str) -> dict[str, Any]:
    (found,) = json.loads(mesh.admin(f"/v1/explain/{engine_id}").text)
    return {step["what"]: step for step in found["steps"]}


def test_a_wrong_declaration_is_repaired_within_a_minute_of_load(mesh: Mesh) -> None:
    assert capacities(mesh)["node-b.e2"] == 400

    def repaired() -> bool:
        found = capacities(mesh)
        return all(abs(found[name] / true - 1) <= 0.15 for name, true in TRUE.items())

    body = chat_body(max_tokens=25)
    with Load(f"{mesh.edge_url}/v1/chat/completions", body, rate_per_s=10) as load:
        wait_until(repaired, "every capacity is within 15 % of the truth", timeout_s=60)
    assert load.failures() == []
    steps = explained(mesh, "node-b.e2")
    assert steps["gpu_power"]["value"] == "400"
    assert "corrected by measurement" in steps["capacity"]["how"]
    assert "in force: x 0.2" in steps["posterior"]["how"]
    assert int(steps["measured"]["value"].split()[0]) >= 2
    asked = [*paths.wattmesh(), "explain", "node-b.e2", "--admin-address"]
    shown = subprocess.run(
        [*asked, f"unix:{mesh.admin_socket}"], capture_output=True, text=True, check=True
    ).stdout
    assert "posterior" in shown
    assert "corrected" in shown  # the table wraps its lines
    metrics = mesh.control_plane_metrics()
    assert metrics["wattmesh_capacity_scrapes_total"] >= 8


def test_another_replica_plans_the_same_without_measuring(mesh: Mesh) -> None:
    socket = f"{mesh.root}/second.sock"
    argv = [*paths.wattmesh(), "control-plane", "--catalog", "consul"]
    argv += [
        "--consul-address",
        mesh.consul.address,
        "--xds-address",
        f"unix:{mesh.root}/xds2.sock",
    ]
    argv += ["--admin-address", f"unix:{socket}"]
    second = Process("second control plane", argv, log=mesh.root / "second.log")

    def plan() -> dict[str, float]:
        engines = json.loads(unix_http.get(socket, "/v1/plan").text).get("engines", [])
        return {engine["id"]: engine["capacity"] for engine in engines}

    try:
        wait_until(
            lambda: Path(socket).exists() and plan() == capacities(mesh),
            "the second replica has the same capacities",
            timeout_s=20,
        )
        text = unix_http.get(socket, "/metrics").text
        assert 'wattmesh_capacity_scrapes_total{result="read"}' not in text
    finally:
        second.stop()


def test_what_was_learnt_outlives_the_control_plane(mesh: Mesh) -> None:
    learnt = capacities(mesh)["node-b.e2"]
    assert mesh.control_plane is not None
    mesh.control_plane.stop()
    mesh.start_control_plane()

    def known_again() -> bool:
        if mesh.admin("/ready").status != 200:
            return False
        return capacities(mesh)["node-b.e2"] == pytest.approx(learnt, rel=0.001)

    wait_until(known_again, "the measured capacity is in force again", timeout_s=20)


def test_without_load_nothing_more_is_learnt(mesh: Mesh) -> None:
    wait_until(
        lambda: "idle" in explained(mesh, "node-b.e2")["measured"]["how"],
        "a round passes without load",
        timeout_s=30,
    )
    assert capacities(mesh)["node-b.e2"] == pytest.approx(100, rel=0.15)

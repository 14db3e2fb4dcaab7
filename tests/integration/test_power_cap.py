"""A power cap that is lowered in an engine's metadata, on a whole mesh with an open stream.

The engines are simulated; all else is real.
"""

import math
from collections.abc import Iterator

import httpx
import pytest

from tests.support.mesh import EngineSetup, Mesh, chat_body
from tests.support.processes import wait_until

pytestmark = [pytest.mark.envoy, pytest.mark.consul]

H100 = {"gpu_power": None, "gpu_model": "NVIDIA H100 80GB HBM3", "gpu_power_limit_w": 700.0}
ENGINES = [
    EngineSetup(node="node-a", name="reader", gpu_power=1, model="tiny", extra=H100),
    EngineSetup(node="node-b", name="reader", gpu_power=1, model="tiny", extra=H100),
    EngineSetup(node="node-a", name="writer", gpu_power=1, model="writing", extra=H100),
    EngineSetup(node="node-b", name="writer", gpu_power=1, model="writing", extra=H100),
]
POLICY = {
    "models": {
        "tiny": {"prompt_output_mix": {"prompt": 1000, "output": 1}},
        "writing": {"prompt_output_mix": {"prompt": 1, "output": 1000}},
    }
}
CAP_W = 350  # of 700: prefill x 0.532, decode x 0.927
EXPONENT = 4  # of the weights under `balance: latency`


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh(ENGINES, policy=POLICY) as mesh:
        yield mesh


def ratio(mesh: Mesh, cluster: str) -> float:
    """Return what the edge's weights say of node-a's capacity over node-b's."""
    hosts = mesh.envoy("edge").hosts(cluster)
    weights = {address: host["weight"] for address, host in hosts.items()}
    a, b = (weights[f"127.0.0.1:{mesh.mesh_ports[node]}"] for node in ("node-a", "node-b"))
    return (a / b) ** (1 / EXPONENT)


def test_a_lowered_cap_moves_prefill_much_and_decode_little_and_cuts_no_stream(mesh: Mesh) -> None:
    assert (ratio(mesh, "tiny"), ratio(mesh, "writing")) == (1, 1)
    before = mesh.envoy("edge").stats("cluster.tiny.upstream_rq_total")
    body = chat_body(max_tokens=1500, stream=True)
    url = f"{mesh.edge_url}/v1/chat/completions"
    with httpx.Client(timeout=60) as client, client.stream("POST", url, json=body) as response:
        chunks = response.iter_bytes()
        next(chunks)
        for engine in ("reader", "writer"):
            mesh.consul.change_metadata(f"node-a.{engine}", gpu_power_limit_w=str(CAP_W))

        def moved() -> bool:
            return math.isclose(ratio(mesh, "tiny"), 0.5**0.91, rel_tol=0.01) and math.isclose(
                ratio(mesh, "writing"), 0.5**0.11, rel_tol=0.01
            )

        wait_until(moved, "weights follow the cap, each as the model says", timeout_s=2)
        text = b"".join(chunks)
    assert text.rstrip().endswith(b"[DONE]")
    after = mesh.envoy("edge").stats("cluster.tiny.upstream_rq_total")
    name = "cluster.tiny.upstream_rq_total"
    assert after[name] >= before[name] + 1  # the cluster and its counters are the same
    for envoy in ("edge", "node-a", "node-b"):
        stats = mesh.envoy(envoy).stats()
        assert stats.get("cluster_manager.cluster_modified", 0) == 0
        assert stats.get("listener_manager.listener_modified", 0) == 0

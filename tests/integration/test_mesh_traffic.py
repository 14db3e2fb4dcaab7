"""What callers get from a whole mesh: the split, streams, refusals, and an end when they leave.

Two nodes with gpu_power 100 and 300. The engines are simulated; all else is real.
"""

import json
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise

import httpx
import pytest

from tests.support import aborts
from tests.support.load import Load, send_chats
from tests.support.mesh import EngineSetup, Mesh, chat_body
from tests.support.processes import children, listening_tcp_ports, wait_until

pytestmark = [pytest.mark.envoy, pytest.mark.consul]

SMALL = EngineSetup(node="node-a", name="e1", gpu_power=100, extra={"max_num_seqs": 32})
LARGE = EngineSetup(node="node-b", name="e1", gpu_power=300, extra={"max_num_seqs": 32})
ASLEEP = "acme/asleep"  # named by the policy, served by nobody
LIMIT_BYTES = 256 * 1024
POLICY = {
    "defaults": {"balance": "proportional"},  # weights are powers: 100 and 300 split 1:3
    "models": {ASLEEP: {}},
    "max_request_size": "256KiB",
}


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh([SMALL, LARGE], policy=POLICY) as mesh:
        yield mesh


def served_by(mesh: Mesh, requests: int) -> dict[str, float]:
    """Send chat requests over HTTP/2, 16 at a time; return how many each engine served."""
    before = mesh.served()
    assert send_chats(mesh.edge_url, requests, chat_body(max_tokens=1)) == [200] * requests
    after = mesh.served()
    return {engine: after[engine] - before[engine] for engine in after}


def test_400_requests_split_by_gpu_power(mesh: Mesh) -> None:
    served = served_by(mesh, 400)
    assert sum(served.values()) == 400
    assert served[SMALL.id] == pytest.approx(100, rel=0.1)
    assert served[LARGE.id] == pytest.approx(300, rel=0.1)


def test_changed_metadata_moves_the_split_within_2_s_and_resets_nothing(mesh: Mesh) -> None:
    edge = mesh.envoy("edge")
    counted = f"cluster.{mesh.cluster}.upstream_rq_total"
    before = edge.stats()
    url = f"{mesh.edge_url}/v1/chat/completions"
    with Load(url, chat_body(max_tokens=1), rate_per_s=50) as load:
        time.sleep(0.5)
        mesh.consul.change_metadata(SMALL.id, gpu_power="600")
        wait_until(lambda: mesh.edge_hosts()["node-a"] == 600, "the new weight", timeout_s=2)
        time.sleep(1)
    assert not load.failures()
    served = served_by(mesh, 200)
    after = edge.stats()
    mesh.consul.change_metadata(SMALL.id, gpu_power="100")
    wait_until(lambda: mesh.edge_hosts()["node-a"] == 100, "the old weight", timeout_s=2)
    assert served[SMALL.id] == pytest.approx(200 * 2 / 3, rel=0.1)
    assert after[counted] - before[counted] == len(load.outcomes) + 200
    for changes in ("cluster_added", "cluster_modified", "cluster_removed"):
        name = f"cluster_manager.{changes}"
        assert after[name] == before[name], f"{name} moved"


def test_no_engine_process_listens_on_tcp(mesh: Mesh) -> None:
    for engine in mesh.engines:
        pids = mesh.engine_pids(engine)
        assert pids
        assert {pid: listening_tcp_ports(pid) for pid in pids} == {pid: [] for pid in pids}


def test_the_check_for_listeners_sees_one(mesh: Mesh) -> None:
    """The node Envoy does listen, so the test above would find a listener if there were one."""
    family = children(mesh.agents["node-a"].pid)
    assert mesh.mesh_ports["node-a"] in {
        port for pid in family for port in listening_tcp_ports(pid)
    }


HTTP = pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])


@HTTP
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        pytest.param(chat_body(model="no-such-model"), 404, "model_not_found", id="unknown model"),
        pytest.param({"messages": []}, 400, "missing_model", id="no model"),
        pytest.param(b'{"model": "tiny', 400, "invalid_json", id="broken JSON"),
        pytest.param(chat_body(model=ASLEEP), 503, "no_engine_available", id="no engine alive"),
        pytest.param(
            chat_body(filler="x" * LIMIT_BYTES), 413, "request_too_large", id="body too large"
        ),
    ],
)
def test_refusals_have_the_shape_of_openai_errors(
    mesh: Mesh, http2: bool, body: dict | bytes, status: int, code: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with httpx.Client(http1=not http2, http2=http2) as client:
        answer = client.post(
            f"{mesh.edge_url}/v1/chat/completions",
            content=content,
            headers={"content-type": "application/json"},
        )
    assert (answer.status_code, answer.http_version) == (status, "HTTP/2" if http2 else "HTTP/1.1")
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == code
    if status == 503:
        assert int(answer.headers["retry-after"]) >= 1
    if status == 413:
        assert str(LIMIT_BYTES) in error["message"]


@HTTP
def test_events_of_a_stream_arrive_one_by_one(mesh: Mesh, http2: bool) -> None:
    started = time.monotonic()
    arrivals = []
    with (
        httpx.Client(http1=not http2, http2=http2, timeout=30) as client,
        client.stream(
            "POST",
            f"{mesh.edge_url}/v1/chat/completions",
            json=chat_body(max_tokens=60, stream=True),
        ) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                arrivals.append(time.monotonic() - started)
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    assert len(arrivals) >= 60
    assert arrivals[0] < 0.5
    # The engine sends a token each 2 to 8 ms; a buffer would show as gaps of zero and a long one.
    assert statistics.median(gaps) > 0.001
    assert max(gaps) < (arrivals[-1] - arrivals[0]) / 3


@pytest.mark.case("B5")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "unary"])
@pytest.mark.parametrize("request_by", [aborts.http1_request, aborts.http2_request])
def test_b5_caller_gone_ends_the_request_at_the_engine_within_2_s(
    mesh: Mesh, request_by, stream: bool
) -> None:
    wait_until(lambda: mesh.running_requests() == 0, "an idle mesh", timeout_s=5)
    retries = mesh.envoy("edge").stats("cluster.")[f"cluster.{mesh.cluster}.upstream_rq_retry"]
    with request_by(mesh.edge_url, chat_body(max_tokens=30_000, stream=stream)) as go_away:
        wait_until(lambda: mesh.running_requests() == 1, "the request runs", timeout_s=5)
        go_away()
        wait_until(lambda: mesh.running_requests() == 0, "the engine stopped", timeout_s=2)
    stats = mesh.envoy("edge").stats("cluster.")
    assert stats[f"cluster.{mesh.cluster}.upstream_rq_retry"] == retries
    assert len(mesh.edge_hosts()) == 2

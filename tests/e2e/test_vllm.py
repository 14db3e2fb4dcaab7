"""The whole mesh with real vLLM: two engines, one per node, gpu_power 100 and 300.

The model is tiny and its text meaningless, but engine, server, metrics and sockets are vLLM's own.
Starting two engines takes a minute, so all tests share one mesh and leave it as they found it.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import aborts, paths
from tests.support.load import Load, send_chats
from tests.support.mesh import EngineSetup, Mesh, chat_body
from tests.support.processes import listening_tcp_ports, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.envoy, pytest.mark.consul, pytest.mark.timeout(600)]

START_S = 300.0
RESTART_S = 150.0
MAX_MODEL_LEN = 32_768


def engine(node: str, gpu_power: float, model_path: Path, core: int) -> EngineSetup:
    extra = {
        "model_path": str(model_path),
        "max_num_seqs": 16,
        "max_model_len": MAX_MODEL_LEN,
        "args": ["--enforce-eager"],
        "env": {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            # One core each: engines that fight for the same one miss their probes.
            "VLLM_CPU_OMP_THREADS_BIND": str(core),
        },
    }
    return EngineSetup(node=node, name="vllm", gpu_power=gpu_power, launcher="vllm", extra=extra)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-model")
    maker = str(paths.ROOT / "engines/tiny_model.py")
    subprocess.run([str(paths.vllm_python()), maker, str(path)], check=True, timeout=120)
    # Room for a generation that lasts: the tiny model makes some 500 tokens a second.
    config = json.loads((path / "config.json").read_text())
    config["max_position_embeddings"] = MAX_MODEL_LEN
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def mesh(model_path: Path) -> Iterator[Mesh]:
    cores = sorted(os.sched_getaffinity(0))
    engines = [
        engine("node-a", 100, model_path, cores[0]),
        engine("node-b", 300, model_path, cores[-1]),
    ]
    policy = {"defaults": {"balance": "proportional"}}
    with Mesh(engines, policy=policy, ready_timeout_s=START_S) as mesh:
        yield mesh


def test_real_vllm_answers_over_both_protocols(mesh: Mesh) -> None:
    for http2 in (False, True):
        answer = mesh.chat(http2=http2, max_tokens=5)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 5


def test_sockets_of_vllm_are_for_owner_and_group(mesh: Mesh) -> None:
    for setup in mesh.engines:
        socket = mesh.root / setup.node / f"{setup.name}.sock"
        assert socket.stat().st_mode & 0o777 == 0o660


def test_no_vllm_process_listens_on_tcp(mesh: Mesh) -> None:
    for setup in mesh.engines:
        pids = mesh.engine_pids(setup)
        assert len(pids) >= 2  # the API server and its engine core
        assert {pid: listening_tcp_ports(pid) for pid in pids} == {pid: [] for pid in pids}


def test_400_chat_requests_split_1_to_3(mesh: Mesh) -> None:
    small, large = mesh.engines
    before = mesh.served()
    assert send_chats(mesh.edge_url, 400, chat_body(max_tokens=1)) == [200] * 400
    served = wait_until(lambda: served_since(mesh, before, 400), "all are counted", timeout_s=15)
    assert served[small.id] == pytest.approx(100, rel=0.1)
    assert served[large.id] == pytest.approx(300, rel=0.1)


def served_since(mesh: Mesh, before: dict[str, float], total: int) -> dict[str, float] | None:
    """Return what each engine served since then, once it adds up: vLLM counts a moment later."""
    served = {name: count - before[name] for name, count in mesh.served().items()}
    return served if sum(served.values()) >= total else None


def test_changed_metadata_moves_the_split_within_2_s_without_a_failed_request(mesh: Mesh) -> None:
    small, _ = mesh.engines
    weights = mesh.edge_hosts()
    before = cluster_changes(mesh)
    with Load(
        f"{mesh.edge_url}/v1/chat/completions", chat_body(max_tokens=1), rate_per_s=10
    ) as load:
        mesh.consul.change_metadata(small.id, gpu_power="600")
        wait_until(lambda: mesh.edge_hosts()["node-a"] == 600, "the new weight", timeout_s=2)
        time.sleep(1)
        mesh.consul.change_metadata(small.id, gpu_power="100")
        wait_until(lambda: mesh.edge_hosts() == weights, "the weights back", timeout_s=2)
    assert load.outcomes
    assert not load.failures()
    assert cluster_changes(mesh) == before


def cluster_changes(mesh: Mesh) -> dict[str, int]:
    """Return how often clusters came, went or were replaced, which would reset their counters."""
    stats = mesh.envoy("edge").stats("cluster_manager.cluster_")
    return {
        kind: stats[f"cluster_manager.cluster_{kind}"] for kind in ("added", "modified", "removed")
    }


def test_stream_of_real_vllm_arrives_event_by_event(mesh: Mesh) -> None:
    started = time.monotonic()
    arrivals, text, usage = [], "", None
    url = f"{mesh.edge_url}/v1/chat/completions"
    body = chat_body(max_tokens=2_000, stream=True, ignore_eos=True)
    with (
        httpx.Client(http1=False, http2=True, timeout=60) as client,
        client.stream("POST", url, json=body) as answer,
    ):
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                arrivals.append(time.monotonic() - started)
                event = json.loads(line.removeprefix("data: "))
                usage = event.get("usage") or usage
                text += "".join(c["delta"].get("content") or "" for c in event["choices"])
    assert len(arrivals) > 50  # on a busy machine vLLM puts several tokens into one event
    assert arrivals[0] < (arrivals[-1] - arrivals[0])  # not all at once at the end
    assert text
    assert usage is not None  # forced on, though the request did not ask for it
    assert usage["completion_tokens"] == 2_000


@pytest.mark.case("B5")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "unary"])
@pytest.mark.parametrize("request_by", [aborts.http1_request, aborts.http2_request])
def test_b5_vllm_stops_within_2_s_of_its_caller(mesh: Mesh, request_by, stream: bool) -> None:
    wait_until(lambda: mesh.running_requests() == 0, "an idle mesh", timeout_s=10)
    body = chat_body(max_tokens=30_000, stream=stream, ignore_eos=True)
    with request_by(mesh.edge_url, body) as go_away:
        wait_until(lambda: mesh.running_requests() == 1, "the request runs", timeout_s=20)
        go_away()
        wait_until(lambda: mesh.running_requests() == 0, "vLLM stopped", timeout_s=2)


def test_killed_vllm_costs_only_its_streams_and_comes_back(mesh: Mesh) -> None:
    _, large = mesh.engines
    killed_pids = mesh.engine_pids(large)
    body = chat_body(max_tokens=8, stream=True)
    with Load(f"{mesh.edge_url}/v1/chat/completions", body, rate_per_s=10) as load:
        time.sleep(2)
        os.kill(killed_pids[0], signal.SIGKILL)
        killed = time.monotonic()
        wait_until(
            lambda: (pids := mesh.engine_pids(large)) and pids[0] != killed_pids[0],
            "a new vLLM process",
            timeout_s=20,
        )
    assert not [outcome for outcome in load.failures() if not outcome.was_streaming]
    assert not load.failures(started_after_s=killed)
    wait_until(lambda: mesh.healthy_engines(large.node), "vLLM is back", timeout_s=RESTART_S)
    wait_until(lambda: len(mesh.edge_hosts()) == 2, "the edge has its node", timeout_s=5)
    assert not set(killed_pids) & set(mesh.engine_pids(large))

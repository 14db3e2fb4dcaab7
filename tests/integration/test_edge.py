"""What the real Envoys make of requests: which model, what reaches the engine, what is refused."""

import asyncio
import json
import random
import shutil
import ssl
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio

from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry
from tests.support.envoy_lab import Lab, chat, running_lab
from tests.support.ports import free_ports

pytestmark = [
    pytest.mark.envoy,
    pytest.mark.asyncio(loop_scope="module"),
]

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
MODELS = ("acme/fox", "acme/fox-7b", "acme/Fox2.5-7B", "acme/Fox2.5-14B", "狐 2")


def plan_of(lab: Lab, **meta: str):
    entries = [
        consul_entry(
            f"node-a.e{index}",
            port=lab.node_port,
            model=model,
            socket=lab.socket(f"e{index}"),
            **(meta if index == 0 else {}),
        )
        for index, model in enumerate(MODELS)
    ]
    return make_plan(*entries)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab():
    root = Path(tempfile.mkdtemp(prefix="wm-", dir="/tmp"))
    async with running_lab(root) as lab:
        engines = [lab.engine(f"e{index}") for index in range(len(MODELS))]
        for engine in engines:
            await engine.__aenter__()
        lab.store.publish(plan_of(lab, version="v1"))
        async with lab.envoy("node", "node-a"), lab.envoy("edge", "edge-1"):
            yield lab
        for engine in engines:
            await engine.__aexit__(None, None, None)
    shutil.rmtree(root)


@pytest_asyncio.fixture(loop_scope="module", params=[False, True], ids=["HTTP/1.1", "HTTP/2"])
async def client(lab, request):
    async with httpx.AsyncClient(
        base_url=lab.url, http1=not request.param, http2=request.param, timeout=20
    ) as client:
        yield client


@pytest.mark.case("E1")
@pytest.mark.parametrize("model", MODELS)
async def test_e1_each_model_reaches_its_own_pool(lab, client, model):
    answer = await client.post(CHAT, content=chat(model), headers=JSON)
    assert answer.status_code == 200
    engine = lab.received[-1].transport.get_extra_info("sockname")
    assert engine == lab.socket(f"e{MODELS.index(model)}")


@pytest.mark.case("E1")
@pytest.mark.parametrize("model", MODELS)
async def test_e1_every_listed_id_can_be_retrieved_plain_and_encoded(client, model):
    listed = (await client.get("/v1/models")).json()
    assert model in [card["id"] for card in listed["data"]]
    encoded = quote(model, safe="")
    for path in {quote(model), encoded, encoded.replace("%2F", "%2f")}:
        answer = await client.get(f"/v1/models/{path}")
        assert (answer.status_code, answer.json()["id"]) == (200, model), path


async def test_a_header_may_name_the_model_instead_of_the_body(client):
    headers = {"x-wattmesh-model": "acme/fox"}
    answer = await client.post(CHAT, content=b"anything", headers=headers)
    assert (answer.status_code, answer.headers["x-wattmesh-version"]) == (200, "v1")
    refused = await client.post(CHAT, content=chat(), headers=JSON | {"x-wattmesh-model": "nope"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("POST", CHAT, chat("acme/f"), 404, "model_not_found"),
        ("POST", CHAT, chat("acme/fox-7b-instruct"), 404, "model_not_found"),
        ("POST", CHAT, b'{"model": 7}', 404, "model_not_found"),
        ("POST", CHAT, b"{}", 400, "missing_model"),
        ("POST", CHAT, b'{"model": null}', 400, "missing_model"),
        ("POST", CHAT, b"", 400, "missing_model"),
        ("POST", CHAT, b"not json", 400, "invalid_json"),
        ("GET", CHAT, b"", 405, "method_not_allowed"),
        ("GET", "/v1/models/acme/nope", b"", 404, "model_not_found"),
        ("POST", "/v1/models", b"", 405, "method_not_allowed"),
        ("GET", "/metrics", b"", 404, "not_found"),
        ("GET", "/health", b"", 404, "not_found"),
        ("POST", "/v1/load_lora_adapter", chat(), 404, "not_found"),
        ("POST", "/v1/chat/completions/x", chat(), 404, "not_found"),
    ],
)
async def test_refusals(client, method, path, content, status, code):
    answer = await client.request(method, path, content=content, headers=JSON)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["code"] == code
    assert answer.json()["error"]["message"]
    allowed = ("POST" if path == CHAT else "GET") if status == 405 else None
    assert answer.headers.get("allow") == allowed
    assert "x-ratelimit-limit" not in answer.headers  # no limit is set


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/json; charset=utf-8", "Application/JSON", None],
)
async def test_content_types_that_are_json(client, content_type):
    headers = {"content-type": content_type} if content_type else {}
    assert (await client.post(CHAT, content=chat(), headers=headers)).status_code == 200


async def test_a_caller_cannot_steer_envoy_or_choose_a_pool(client):
    steering = {
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-retry-on": "5xx",
        "x-envoy-max-retries": "9",
        "x-wattmesh-pool": "acme_2Ffox-7b",
        "x-wattmesh-engine": "e1",
        "x-wattmesh-priority": "vip",
        "x-request-id": "mine",
    }
    answer = await client.post(f"{CHAT}?a=b", content=chat(), headers=JSON | steering)
    assert answer.status_code == 200
    seen = answer.json()
    assert seen["path"] == f"{CHAT}?a=b"
    assert seen["headers"]["x-request-id"] == "mine"
    for name in set(steering) - {"x-request-id"}:
        assert name not in seen["headers"], name
    leaked = [name for name in answer.headers if name.startswith("x-envoy")]
    assert not leaked


async def test_a_large_prompt_passes(client):
    body = chat(filler="x" * (20 * 1024 * 1024))
    answer = await client.post(CHAT, content=body, headers=JSON)
    assert (answer.status_code, answer.json()["bytes"]) == (200, len(body))


async def test_a_prompt_over_the_limit_is_refused_with_the_limit(client):
    body = chat(filler="x" * (33 * 1024 * 1024))
    answer = await client.post(CHAT, content=body, headers=JSON)
    assert answer.status_code == 413
    assert "33554432 bytes" in answer.json()["error"]["message"]


@pytest.mark.case("B2")
@pytest.mark.parametrize(
    ("token", "connection"),
    [
        pytest.param("h2c", "Upgrade, HTTP2-Settings", id="B2 h2c, as the JDK asks"),
        pytest.param("TLS/1.2", "Upgrade", id="TLS, as Apache HttpClient asks"),
        pytest.param("TLS/1.2, HTTP/1.1", "Upgrade", id="two tokens"),
        pytest.param("websocket", "Upgrade", id="websocket"),
    ],
)
async def test_b2_an_attempt_to_upgrade_keeps_its_body(lab, token, connection):
    body = chat(filler="x" * 150)
    reader, writer = await asyncio.open_connection("127.0.0.1", lab.edge_port)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nHost: edge\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: {connection}\r\nUpgrade: {token}\r\n"
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n\r\n".encode()
        + body
    )
    async with asyncio.timeout(10):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert head.startswith("http/1.1 200"), head
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        seen = json.loads(await reader.readexactly(length))
    writer.close()
    assert seen["body"] == body.decode()
    assert "upgrade" not in seen["headers"]
    if token == "h2c":
        assert "http2-settings" not in seen["headers"]


@pytest.mark.case("B1")
async def test_b1_no_request_meets_a_connection_that_the_engine_is_closing(lab):
    """300 requests, each after a pause around the engine's keep-alive of 5 s."""
    pauses = random.Random(1)

    async def caller(client):
        statuses = []
        for _ in range(5):
            statuses.append((await client.post(CHAT, content=chat(), headers=JSON)).status_code)
            await asyncio.sleep(pauses.uniform(4.8, 5.2))
        return statuses

    async with httpx.AsyncClient(base_url=lab.url, timeout=20) as client:
        answers = await asyncio.gather(*(caller(client) for _ in range(60)))
    assert answers == [[200] * 5] * 60
    stats = await lab.stats("node-a")
    assert stats["cluster.acme_2Ffox__v1.upstream_cx_idle_timeout"] > 0  # Envoy closed them first
    assert stats["cluster.acme_2Ffox__v1.upstream_rq_retry"] == 0


@pytest.mark.parametrize("host", ["", " ", "u:p@h", "a b"])
async def test_a_host_that_is_no_authority_ends_nobody_elses_connection(lab, host):
    before = {name: await lab.stats(name) for name in ("edge-1", "node-a")}
    statuses = [await _raw_status(lab, host) for _ in range(5)]
    after = {name: await lab.stats(name) for name in before}
    assert set(statuses) <= {200, 400}
    broken = "http2.rx_messaging_error"
    assert after["node-a"].get(broken, 0) == before["node-a"].get(broken, 0)
    closed = "cluster.acme_2Ffox__v1.upstream_cx_destroy_remote"
    assert after["edge-1"].get(closed, 0) == before["edge-1"].get(closed, 0)


async def _raw_status(lab, host):
    body = chat()
    head = f"POST {CHAT} HTTP/1.1\r\nhost:{host}\r\ncontent-length: {len(body)}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", lab.edge_port)
    writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


async def test_what_the_edge_lets_in_passes_the_node(client):
    many = {f"x-n{number}": "v" for number in range(85)}
    assert (await client.post(CHAT, content=chat(), headers=JSON | many)).status_code == 200


async def test_the_nodes_listener_serves_metrics_and_known_pools_only(lab):
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{lab.node_port}") as node:
        metrics = await node.get("/wattmesh/engines/e0/metrics")
        assert (metrics.status_code, metrics.text) == (200, "vllm:num_requests_running 0\n")
        for path in ("/wattmesh/engines/nope/metrics", "/metrics", CHAT):
            refused = await node.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
        gone = await node.get(CHAT, headers={"x-wattmesh-pool": "nope"})
        assert (gone.status_code, gone.headers["retry-after"]) == (503, "2")
        assert gone.json()["error"]["code"] == "unavailable"
        assert gone.headers["x-wattmesh-no-engine"] == "true"


@pytest.mark.case("D8")
async def test_d8_models_that_differ_behind_a_dot_are_counted_apart(lab, client):
    names = {"acme/Fox2.5-7B": "acme_2FFox2_2E5-7B", "acme/Fox2.5-14B": "acme_2FFox2_2E5-14B"}
    before = await lab.stats("edge-1")
    await client.post(CHAT, content=chat("acme/Fox2.5-7B"), headers=JSON)
    for _ in range(3):
        await client.post(CHAT, content=chat("acme/Fox2.5-14B"), headers=JSON)
    after = await lab.stats("edge-1")
    counted = {m: f"cluster.{cluster}.upstream_rq_total" for m, cluster in names.items()}
    moved = {model: after[name] - before[name] for model, name in counted.items()}
    assert moved == {"acme/Fox2.5-7B": 1, "acme/Fox2.5-14B": 3}
    text = await asyncio.to_thread(lab.admin("edge-1").get, "/stats/prometheus")
    series = [line.split(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    for cluster in names.values():
        assert f'envoy_cluster_upstream_rq_total{{envoy_cluster_name="{cluster}"}}' in series


@pytest.mark.conformance("63")
async def test_63_a_moved_weight_is_told_by_eds_alone(lab):
    before = await lab.stats("edge-1")
    await lab.publish(plan_of(lab, version="v1", gpu_power="777"))
    after = await lab.stats("edge-1")
    moved = [
        name
        for name in after
        if name.endswith(("update_success", "config_reload", "cluster_modified"))
        and after[name] != before.get(name)
    ]
    assert not [name for name in moved if "cluster.acme" not in name]
    assert (await lab.stats("edge-1"))["listener_manager.listener_modified"] == 0


async def test_a_model_whose_engine_died_is_503_with_retry_after_and_comes_back(lab, client):
    dead = make_plan(
        consul_entry(
            "node-a.e0",
            port=lab.node_port,
            socket=lab.socket("e0"),
            status="critical",
            version="v1",
        )
    )
    alive = plan_of(lab, version="v1")
    await lab.publish(dead)
    for _ in range(100):  # endpoints become none only a grace after the routes
        answer = await client.post(CHAT, content=chat(), headers=JSON)
        if answer.status_code != 200:
            break
        await asyncio.sleep(0.05)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert answer.json()["error"]["code"] == "no_engine_available"
    assert (await client.get("/v1/models")).json()["data"] == []
    await lab.publish(alive)
    for _ in range(100):
        if (await client.post(CHAT, content=chat(), headers=JSON)).status_code == 200:
            return
        await asyncio.sleep(0.05)
    pytest.fail("it did not come back")


async def test_tls_with_alpn_when_a_certificate_is_given(lab):
    key, cert = await asyncio.to_thread(make_certificate, lab.root)
    plain_port, (lab.edge_port,) = lab.edge_port, free_ports(1)
    try:
        async with lab.envoy("edge", "edge-tls", tls_cert=cert, tls_key=key):
            trust = ssl.create_default_context(cafile=cert)
            for http2 in (False, True):
                async with httpx.AsyncClient(verify=trust, http1=not http2, http2=True) as client:
                    url = f"https://127.0.0.1:{lab.edge_port}{CHAT}"
                    answer = await client.post(url, content=chat(), headers=JSON)
                    assert answer.status_code == 200
                    assert answer.http_version == "HTTP/2"
            async with httpx.AsyncClient(verify=trust) as client:
                answer = await client.post(url, content=chat(), headers=JSON)
                assert (answer.status_code, answer.http_version) == (200, "HTTP/1.1")
    finally:
        lab.edge_port = plain_port


def make_certificate(directory):
    """Return the paths of a new key and its certificate for 127.0.0.1."""
    key, cert = str(directory / "key.pem"), str(directory / "cert.pem")
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    argv += ["-nodes", "-keyout", key, "-out", cert, "-subj", "/CN=localhost", "-days", "2"]
    argv += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(argv, check=True, capture_output=True)
    return key, cert

"""The control plane put together, with files as sources and its admin API on a Unix socket."""

import asyncio
import contextlib
import json
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import structlog
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2

from control_plane.addresses import HostPort, UnixSocket
from control_plane.catalog import parse_catalog
from control_plane.debounce import Debounce
from control_plane.guard import CatalogRead
from control_plane.metrics import Metrics
from control_plane.service import ControlPlaneConfig, run_control_plane
from control_plane.snapshot import CLUSTER
from engines.sockets import SocketError
from tests.support.consul_json import consul_answer, consul_entry
from tests.support.eventually import eventually
from tests.support.fake_consul import Answer, FakeConsul
from tests.support.ports import free_ports
from tests.support.xds_wire import Wire, make_node, names


@dataclass
class Running:
    """A control plane under test."""

    directory: Path
    session: aiohttp.ClientSession
    base: str = "http://admin"

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(f"{self.base}{path}") as response:
            text = await response.text()
            is_json = response.content_type == "application/json"
            return response.status, json.loads(text) if is_json else text

    async def post(self, path: str, **body: Any) -> tuple[int, Any]:
        async with self.session.post(f"{self.base}{path}", **body) as response:
            return response.status, await response.json()

    async def until(self, path: str, holds: Any) -> Any:
        """Return what a path answers once it is as awaited."""
        async with asyncio.timeout(5):
            while True:
                with contextlib.suppress(aiohttp.ClientConnectorError):
                    status, body = await self.get(path)
                    if holds(status, body):
                        return body
                await asyncio.sleep(0.01)

    def write(self, name: str, data: bytes) -> None:
        beside = self.directory / f"{name}.new"
        beside.write_bytes(data)
        beside.rename(self.directory / name)


@contextlib.asynccontextmanager
async def running(
    directory: Path,
    *,
    policy: bytes | None = b"{}",
    catalog: bytes | None = None,
    reads: AsyncIterator[CatalogRead] | None = None,
    consul: FakeConsul | None = None,
    hold_s: float = 60.0,
) -> AsyncIterator[Running]:
    admin = directory / "admin.sock"
    if policy is not None:
        (directory / "policy.yaml").write_bytes(policy)
    if catalog is not None:
        (directory / "catalog.json").write_bytes(catalog)
    config = ControlPlaneConfig(
        catalog="consul" if consul else str(directory / "catalog.json"),
        consul_address=consul.address if consul else "",
        hold_s=hold_s,
        policy=directory / "policy.yaml",
        xds_addresses=(UnixSocket(str(directory / "xds.sock")),),
        admin_address=UnixSocket(str(admin)),
        debounce=Debounce(quiet_s=0.02, cap_s=0.2),
    )
    task = asyncio.create_task(run_control_plane(config, catalog=reads, metrics=Metrics()))
    connector = aiohttp.UnixConnector(str(admin))
    async with aiohttp.ClientSession(connector=connector) as session:
        try:
            yield Running(directory, session)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    assert not _sockets(directory)


def _sockets(directory: Path) -> list[Path]:
    return list(directory.glob("*.sock"))


def is_ready(status: int, _body: Any) -> bool:
    return status == 200


def not_ready(status: int, _body: Any) -> bool:
    return status == 503


def two_engines(**meta: str) -> bytes:
    return consul_answer(
        consul_entry("a.e1", port=9901, gpu_power="100"),
        consul_entry("b.e1", port=9902, **({"gpu_power": "300"} | meta)),
    )


async def test_ready_after_catalog_policy_and_first_publish(short_tmp_path: Path) -> None:
    async with running(short_tmp_path, policy=None) as plane:
        body = await plane.until("/ready", not_ready)
        assert "catalog was not read" in body["reason"]
        plane.write("catalog.json", two_engines())
        body = await plane.until("/ready", lambda _, b: "policy" in (b["reason"] or ""))
        assert "No such file" in body["reason"]
        assert (await plane.get("/v1/plan"))[0] == 503
        plane.write("policy.yaml", b"{}")
        body = await plane.until("/ready", is_ready)
        assert body == {"ready": True, "reason": None, "problems": []}
        mode = (short_tmp_path / "admin.sock").stat().st_mode
        assert stat.S_IMODE(mode) == 0o660


async def test_plan_fleet_status_and_metrics(short_tmp_path: Path) -> None:
    async with running(short_tmp_path, catalog=two_engines()) as plane:
        await plane.until("/ready", is_ready)
        _, plan = await plane.get("/v1/plan")
        shares = {engine["id"]: engine["share"] for engine in plan["engines"]}
        assert shares == {"a.e1": 0.25, "b.e1": 0.75}
        _, fleet = await plane.get("/v1/fleet")
        assert [node["node"] for node in fleet["nodes"]] == ["a", "b"]
        assert fleet["held"] == []
        assert await plane.get("/v1/xds/status") == (
            200,
            {"streams": [], "quarantined": [], "canary": {"bound_s": 5.0, "held": []}},
        )
        _, metrics = await plane.get("/metrics")
        assert 'wattmesh_engine_gpu_power{cluster="acme_2Ffox",engine="e1",node="b"' in metrics
        assert 'wattmesh_engines{state="ready"} 2.0' in metrics
        assert 'wattmesh_pool_info{cluster="acme_2Ffox",model="acme/fox",version=""} 1.0' in metrics


async def test_a_changed_power_moves_the_plan_and_leaves_no_old_series(
    short_tmp_path: Path,
) -> None:
    async with running(short_tmp_path, catalog=two_engines()) as plane:
        await plane.until("/ready", is_ready)
        plane.write("catalog.json", two_engines(version="v2", gpu_power="100"))
        await plane.until("/v1/plan", lambda _, plan: plan["engines"][1]["gpu_power"] == 100)
        _, metrics = await plane.get("/metrics")
        assert 'cluster="acme_2Ffox__v2",engine="e1",node="b"' in metrics
        assert 'cluster="acme_2Ffox",engine="e1",node="b"' not in metrics


async def test_a_bad_policy_keeps_the_last_good_one_and_tells_all_problems(
    short_tmp_path: Path,
) -> None:
    good = b"models: {acme/fox: {generation_timeout: 30s}}"
    async with running(short_tmp_path, policy=good, catalog=two_engines()) as plane:
        await plane.until("/ready", is_ready)
        plane.write(
            "policy.yaml",
            b"models: {acme/fox: {generation_timeout: 5, versons: {}}}\nretry_after: 1",
        )
        body = await plane.until("/ready", lambda _, b: b["problems"])
        assert body["ready"]
        assert len(body["problems"]) == 3
        _, metrics = await plane.get("/metrics")
        assert "wattmesh_policy_errors 3.0" in metrics
        _, plan = await plane.get("/v1/plan")
        assert plan["models"][0]["generation_timeout_s"] == 30
        plane.write("policy.yaml", b"{}")
        await plane.until("/v1/plan", lambda _, p: p["models"][0]["generation_timeout_s"] == 600)
        assert (await plane.get("/ready"))[1]["problems"] == []


async def test_a_bad_catalog_file_keeps_the_last_good_one(short_tmp_path: Path) -> None:
    async with running(short_tmp_path, catalog=two_engines()) as plane:
        await plane.until("/ready", is_ready)
        plane.write("catalog.json", b'{"not": "a list"}')
        await plane.until("/ready", lambda _, body: body["problems"])
        _, plan = await plane.get("/v1/plan")
        assert len(plan["engines"]) == 2


async def test_one_bad_entry_drops_that_engine_only(short_tmp_path: Path) -> None:
    bad = consul_entry("b.e1", port=9902, socket="relative")
    catalog = consul_answer(consul_entry("a.e1"), bad)
    async with running(short_tmp_path, catalog=catalog) as plane:
        body = await plane.until("/ready", is_ready)
        assert len(body["problems"]) == 1
        _, plan = await plane.get("/v1/plan")
        assert [engine["id"] for engine in plan["engines"]] == ["a.e1"]


async def test_a_burst_of_changes_is_one_publication(short_tmp_path: Path) -> None:
    async def burst() -> AsyncIterator[CatalogRead]:
        for power in range(1, 20):
            answer = consul_answer(consul_entry(gpu_power=str(power)))
            yield CatalogRead(catalog=parse_catalog(answer, source="test"))
        await asyncio.Event().wait()

    async with running(short_tmp_path, reads=burst()) as plane:
        await plane.until("/ready", is_ready)
        _, plan = await plane.get("/v1/plan")
        assert plan["engines"][0]["gpu_power"] == 19
        _, metrics = await plane.get("/metrics")
        assert "wattmesh_plan_seconds_count 1.0" in metrics


@pytest.mark.case("D7")
@pytest.mark.conformance("consul-17")
async def test_d7_consul_restarted_empty_holds_the_engines_for_a_time(
    short_tmp_path: Path,
) -> None:
    consul = FakeConsul([Answer("500")])
    async with consul.serve(), running(short_tmp_path, consul=consul, hold_s=0.6) as plane:
        await plane.until("/ready", is_ready)
        consul.say(Answer("3", body=b"[]"))
        fleet = await plane.until("/v1/fleet", lambda _, body: body["held"])
        assert fleet["held"] == ["a.e1"]
        _, plan = await plane.get("/v1/plan")
        assert [engine["state"] for engine in plan["engines"]] == ["ready"]
        await plane.until("/v1/plan", lambda _, plan: plan["engines"] == [])
        assert (await plane.get("/v1/fleet"))[1]["held"] == []


@pytest.mark.case("D7")
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Answer("5", status=500), id="D7 b: Consul is down"),
        pytest.param(Answer("5", body=b"[]"), id="D7 c: an empty list at first sight"),
    ],
)
async def test_d7_nothing_is_served_before_the_first_complete_read(
    short_tmp_path: Path, answer: Answer
) -> None:
    consul = FakeConsul([*[answer] * 3, Answer("6")])
    async with consul.serve(), running(short_tmp_path, consul=consul) as plane:
        await plane.until("/ready", not_ready)
        assert (await plane.get("/v1/plan"))[0] == 503
        await plane.until("/ready", is_ready)
        assert len((await plane.get("/v1/plan"))[1]["engines"]) == 1


@pytest.mark.conformance("consul-15")
async def test_consul_15_one_query_is_open_whatever_the_number_of_envoys(
    short_tmp_path: Path,
) -> None:
    consul = FakeConsul([Answer("5")])
    async with (
        consul.serve(),
        running(short_tmp_path, consul=consul) as plane,
        Wire(f"unix:{short_tmp_path}/xds.sock") as wire,
    ):
        await plane.until("/ready", is_ready)
        for index in range(20):
            stream = wire.open("delta", node=make_node(f"n{index}", role="node"))
            await stream.subscribe(CLUSTER)
        await eventually(lambda: consul.open_now)
        consul.say(Answer("6", power="2"))
        await plane.until("/v1/plan", lambda _, plan: plan["engines"][0]["gpu_power"] == 2)
        await eventually(lambda: consul.open_now)
    assert consul.asked == [None, "5", "6"]
    assert consul.most_open == 1


@pytest.mark.conformance("consul-38")
async def test_consul_38_a_replica_that_cannot_lead_serves(short_tmp_path: Path) -> None:
    consul = FakeConsul([Answer("5")])  # knows no sessions: nobody can lead
    with structlog.testing.capture_logs() as logs:
        async with (
            consul.serve(),
            running(short_tmp_path, consul=consul) as plane,
            Wire(f"unix:{short_tmp_path}/xds.sock") as wire,
        ):
            await plane.until("/ready", is_ready)
            stream = wire.open("delta", node=make_node("a", role="node"))
            assert "acme_2Ffox" in names(await stream.subscribe(CLUSTER))
    assert "leading" not in [entry["event"] for entry in logs]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        pytest.param("GET", "/nothing", 404, "not_found", id="unknown path"),
        pytest.param("POST", "/v1/plan", 405, "method_not_allowed", id="wrong method"),
    ],
)
async def test_errors_are_json(
    short_tmp_path: Path, method: str, path: str, status: int, code: str
) -> None:
    async with running(short_tmp_path, catalog=two_engines()) as plane:
        await plane.until("/ready", is_ready)
        async with plane.session.request(method, f"http://admin{path}") as response:
            assert response.status == status
            assert (await response.json())["error"]["code"] == code


async def test_a_second_one_leaves_the_firsts_admin_socket_alone(short_tmp_path: Path) -> None:
    async with running(short_tmp_path, catalog=two_engines()) as plane:
        await plane.until("/ready", is_ready)
        with pytest.raises(SocketError, match="has a live server"):
            await run_control_plane(
                ControlPlaneConfig(
                    catalog=str(short_tmp_path / "catalog.json"),
                    policy=None,
                    xds_addresses=(UnixSocket(str(short_tmp_path / "other.sock")),),
                    admin_address=UnixSocket(str(short_tmp_path / "admin.sock")),
                )
            )
        assert (short_tmp_path / "admin.sock").exists()
        assert (await plane.get("/ready"))[0] == 200


async def test_the_admin_api_on_tcp(short_tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = ControlPlaneConfig(
        catalog=str(short_tmp_path / "catalog.json"),
        policy=None,
        xds_addresses=(UnixSocket(str(short_tmp_path / "xds.sock")),),
        admin_address=HostPort("127.0.0.1", port),
    )
    (short_tmp_path / "catalog.json").write_bytes(two_engines())
    task = asyncio.create_task(run_control_plane(config))
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        plane = Running(short_tmp_path, session, "")
        await plane.until("/ready", is_ready)
    task.cancel()
    await asyncio.wait([task])


@contextlib.asynccontextmanager
async def edge_stream(directory: Path, node_id: str) -> AsyncIterator[None]:
    """Connect like an edge Envoy, and stay."""
    request = discovery_pb2.DeltaDiscoveryRequest(type_url=CLUSTER)
    request.node.id = node_id
    request.node.metadata.update(
        {"role": "edge", "listen_address": "127.0.0.1", "listen_port": 10000}
    )
    async with grpc.aio.insecure_channel(f"unix:{directory / 'xds.sock'}") as channel:
        call = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel).DeltaAggregatedResources()
        await call.write(request)
        await call.read()
        yield
        call.cancel()


async def test_limits_are_shared_among_the_edges_that_are_connected(tmp_path: Path) -> None:
    policy = b"request_limit: {rate: 10/s}"
    async with running(tmp_path, policy=policy, catalog=two_engines()) as plane:
        await plane.until("/ready", is_ready)

        async def shared_by(*edges: str) -> None:
            await plane.until("/v1/plan", lambda _status, body: body["edges"] == list(edges))

        async with edge_stream(tmp_path, "edge-1"):
            await shared_by("edge-1")
            async with edge_stream(tmp_path, "edge-0"), edge_stream(tmp_path, "edge-1"):
                await shared_by("edge-0", "edge-1")
            await shared_by("edge-1")
            plane.write("policy.yaml", b"{}")
            await shared_by()  # with no limit nobody needs to know


async def test_what_an_envoy_is_served_can_be_looked_at(tmp_path: Path) -> None:
    async with running(tmp_path, catalog=two_engines()) as plane:
        await plane.until("/ready", is_ready)
        status, node = await plane.get("/v1/xds/resources/a")
        assert status == 200
        (listener,) = node["type.googleapis.com/envoy.config.listener.v3.Listener"]
        assert (listener["name"], listener["@type"].rpartition(".")[2]) == ("mesh", "Listener")
        assert (await plane.get("/v1/xds/resources/edge-1"))[0] == 404
        async with edge_stream(tmp_path, "edge-1"):
            status, edge = await plane.get("/v1/xds/resources/edge-1")
            assert status == 200
            (listener,) = edge["type.googleapis.com/envoy.config.listener.v3.Listener"]
            assert listener["name"] == "edge"


CLEAR = "/v1/xds/quarantine/clear"


async def test_a_refused_content_is_offered_again_by_hand(short_tmp_path: Path) -> None:
    async with running(short_tmp_path, catalog=two_engines()) as plane:
        await plane.until("/ready", is_ready)
        async with grpc.aio.insecure_channel(f"unix:{short_tmp_path / 'xds.sock'}") as channel:
            call = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel).DeltaAggregatedResources()
            first = discovery_pb2.DeltaDiscoveryRequest(type_url=CLUSTER)
            first.node.id = "edge-1"
            first.node.metadata.update(
                {"role": "edge", "listen_address": "127.0.0.1", "listen_port": 10000}
            )
            await call.write(first)
            offered = await call.read()
            nack = discovery_pb2.DeltaDiscoveryRequest(
                type_url=CLUSTER, response_nonce=offered.nonce
            )
            nack.error_detail.message = "no good"
            await call.write(nack)
            status = await plane.until("/v1/xds/status", lambda _, body: body["quarantined"])
            (refusal,) = status["quarantined"]
            answer = await plane.post(CLEAR, json={"version": refusal["version"]})
            assert answer == (200, {"cleared": [refusal]})
            again = await call.read()
            assert [item.version for item in again.resources] == [refusal["version"]]
            assert (await plane.get("/v1/xds/status"))[1]["quarantined"] == []


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        pytest.param({"json": {"version": "abc"}}, 404, "'abc'", id="no such version"),
        pytest.param({"json": {"version": ""}}, 400, "version", id="empty"),
        pytest.param({"json": {"version": 7}}, 400, "version", id="no text"),
        pytest.param({"json": {"all": False}}, 400, "all", id="nothing asked for"),
        pytest.param({"json": {"all": True, "version": "a"}}, 400, "all", id="both"),
        pytest.param({"json": ["all"]}, 400, "version", id="a list"),
        pytest.param({"data": b"x", "headers": {"content-type": "application/json"}}, 400, "body",
                     id="no JSON"),
        pytest.param({"data": b"{}"}, 415, "application/json", id="no JSON by its type"),
    ],
)  # fmt: skip
async def test_a_clear_that_names_nothing_is_refused(
    short_tmp_path: Path, body: dict[str, Any], status: int, told: str
) -> None:
    async with running(short_tmp_path) as plane:
        await plane.until("/ready", not_ready)
        answer = await plane.post(CLEAR, **body)
        assert answer[0] == status
        assert told in answer[1]["error"]["message"]


async def test_clearing_an_empty_quarantine_is_no_error(short_tmp_path: Path) -> None:
    async with running(short_tmp_path) as plane:
        await plane.until("/ready", not_ready)
        assert await plane.post(CLEAR, json={"all": True}) == (200, {"cleared": []})
        assert (await plane.get(CLEAR))[0] == 405

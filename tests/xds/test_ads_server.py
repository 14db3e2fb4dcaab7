"""The server over the wire: a raw gRPC client on a Unix socket."""

import contextlib

import grpc
import pytest

from control_plane.addresses import HostPort, UnixSocket
from control_plane.ads import AdsService, serve_ads
from control_plane.metrics import Metrics
from control_plane.resources import build_resources
from control_plane.snapshot import CLUSTER, ENDPOINT, LISTENER, make_snapshot
from control_plane.store import SnapshotStore
from engines.sockets import SocketError
from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry
from tests.support.eventually import eventually
from tests.support.ports import free_ports
from tests.support.xds_wire import Wire, make_node

PLAN = make_plan(consul_entry("n1.e1"), consul_entry("n2.e1", port=9902))
OTHER = make_plan(consul_entry("n1.e1"), consul_entry("n2.e1", port=9902, gpu_power="300"))


@contextlib.asynccontextmanager
async def serving(path):
    metrics = Metrics()
    store = SnapshotStore(lambda plan, view: make_snapshot(build_resources(plan, view)), metrics)
    service = AdsService(store, metrics)
    address = UnixSocket(str(path / "xds.sock"))
    async with serve_ads(service, [address]), Wire(str(address)) as wire:
        yield store, service, wire, metrics


@pytest.mark.conformance("30")
@pytest.mark.case("D7")
async def test_30_d7_a_b_nothing_is_served_until_the_first_complete_read(short_tmp_path):
    async with serving(short_tmp_path) as (store, _, wire, _):
        early = wire.open("delta")
        with contextlib.suppress(grpc.aio.AioRpcError):  # refused before the request is out
            await early.send(CLUSTER)
        assert await early.code() is grpc.StatusCode.UNAVAILABLE
        store.publish(PLAN)
        late = wire.open("delta")
        await late.send(CLUSTER)
        assert [item.name for item in (await late.receive()).resources] == ["acme_2Ffox"]


@pytest.mark.case("D7")
async def test_d7_a_reconnect_gets_nothing_that_it_holds_and_an_answer_for_what_is_gone(
    short_tmp_path,
):
    async with serving(short_tmp_path) as (store, _, wire, _):
        store.publish(PLAN)
        first = wire.open("delta")
        await first.send(CLUSTER)
        response = await first.receive()
        held = {item.name: item.version for item in response.resources}
        await first.close()

        again = wire.open("delta")
        await again.send(CLUSTER, initial_resource_versions=held)
        await again.silence()
        again = wire.open("delta")
        await again.send(
            ENDPOINT,
            resource_names_subscribe=["gone"],
            initial_resource_versions={"gone": "v1"},
        )
        assert list((await again.receive()).removed_resources) == ["gone"]


@pytest.mark.case("D5")
async def test_d5_a_refused_response_is_not_sent_again_and_the_fix_goes_out_at_once(
    short_tmp_path,
):
    async with serving(short_tmp_path) as (store, service, wire, metrics):
        store.publish(PLAN)
        client = wire.open("delta")
        await client.send(ENDPOINT, resource_names_subscribe=["acme_2Ffox"])
        response = await client.receive()
        await client.send(ENDPOINT, response_nonce=response.nonce, error="acme_2Ffox is bad")
        await client.silence()
        ((status,),) = (stream.types for stream in service.status())
        assert (status.state, status.last_error) == ("ERROR", "acme_2Ffox is bad")
        assert (
            metrics.registry.get_sample_value(
                "wattmesh_xds_requests_total", {"type": "ClusterLoadAssignment", "kind": "nack"}
            )
            == 1
        )
        store.publish(OTHER)
        fixed = await client.receive()
        assert [item.name for item in fixed.resources] == ["acme_2Ffox"]


async def test_a_change_reaches_every_stream_and_only_what_changed(short_tmp_path):
    async with serving(short_tmp_path) as (store, service, wire, _):
        store.publish(PLAN)
        clients = [wire.open("delta") for _ in range(3)]
        for client in clients:
            await client.send(CLUSTER)
            response = await client.receive()
            await client.send(CLUSTER, response_nonce=response.nonce)
            await client.send(ENDPOINT, resource_names_subscribe=["acme_2Ffox"])
            response = await client.receive()
            await client.send(ENDPOINT, response_nonce=response.nonce)
        store.publish(OTHER)
        for client in clients:
            assert (await client.receive()).type_url == ENDPOINT
        assert len(service.status()) == 3


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({}, "node.metadata.role"),
        ({"role": "edge"}, "listen_port"),
        ({"role": "x"}, "edge or node"),
    ],
)
async def test_an_envoy_that_does_not_say_who_it_is_is_told_so(short_tmp_path, metadata, told):
    async with serving(short_tmp_path) as (store, _, wire, _):
        store.publish(PLAN)
        client = wire.open("delta", node=make_node("edge-1", **metadata))
        await client.send(LISTENER)
        assert await client.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert told in await client.details()


@pytest.mark.conformance("50")
@pytest.mark.parametrize("variant", ["sotw", "delta"])
@pytest.mark.parametrize("only_type", [None, CLUSTER], ids=["aggregated", "of one type"])
async def test_50_a_gone_stream_leaves_nothing(short_tmp_path, variant, only_type):
    async with serving(short_tmp_path) as (store, service, wire, metrics):
        store.publish(PLAN)
        client = wire.open(variant, only_type=only_type)
        await client.subscribe(CLUSTER)
        assert [status.node for status in service.status()] == ["edge-1"]
        await client.close()
        await eventually(lambda: not service.status())
        assert metrics.registry.get_sample_value("wattmesh_xds_streams", {"role": "edge"}) == 0


@pytest.mark.parametrize("variant", ["sotw", "delta"])
async def test_a_service_of_one_type_refuses_another(short_tmp_path, variant):
    async with serving(short_tmp_path) as (store, _, wire, _):
        store.publish(PLAN)
        client = wire.open(variant, only_type=CLUSTER)
        await client.send(LISTENER)
        assert await client.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_socket_is_for_owner_and_group_and_goes_with_the_server(short_tmp_path):
    path = short_tmp_path / "xds.sock"
    async with serving(short_tmp_path):
        assert path.stat().st_mode & 0o777 == 0o660
        with pytest.raises(SocketError, match="live server"):
            async with serving(short_tmp_path):
                pass
    assert not path.exists()


async def test_it_serves_over_tcp_too(short_tmp_path):
    metrics = Metrics()
    store = SnapshotStore(lambda plan, view: make_snapshot(build_resources(plan, view)), metrics)
    address = HostPort("127.0.0.1", free_ports(1)[0])
    async with (
        serve_ads(AdsService(store, metrics), [address]),
        Wire(str(address)) as wire,
    ):
        store.publish(PLAN)
        client = wire.open("delta")
        await client.send(CLUSTER)
        assert (await client.receive()).type_url == CLUSTER

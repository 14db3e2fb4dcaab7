"""The server over the wire: a raw gRPC client on a Unix socket."""

import asyncio
import contextlib

import grpc
import pytest
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2

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

PLAN = make_plan(consul_entry("n1.e1"), consul_entry("n2.e1", port=9902))
OTHER = make_plan(consul_entry("n1.e1"), consul_entry("n2.e1", port=9902, gpu_power="300"))
EDGE = {"role": "edge", "listen_address": "127.0.0.1", "listen_port": 10000}


class RawClient:
    """One stream; every answer is awaited with a deadline."""

    def __init__(self, channel):
        self.call = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel).DeltaAggregatedResources()

    async def send(self, type_url, **fields):
        metadata, error = fields.pop("metadata", EDGE), fields.pop("error", None)
        request = discovery_pb2.DeltaDiscoveryRequest(type_url=type_url, **fields)
        request.node.id = "edge-1"
        request.node.metadata.update(metadata)
        if error:
            request.error_detail.message = error
        await self.call.write(request)

    async def receive(self):
        async with asyncio.timeout(5):
            return await self.call.read()

    async def silence(self):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await self.call.read()

    async def code(self):
        async with asyncio.timeout(5):
            return await self.call.code()


@contextlib.asynccontextmanager
async def serving(path):
    metrics = Metrics()
    store = SnapshotStore(lambda plan, view: make_snapshot(build_resources(plan, view)), metrics)
    service = AdsService(store, metrics)
    address = UnixSocket(str(path / "xds.sock"))
    async with serve_ads(service, [address]), grpc.aio.insecure_channel(str(address)) as channel:
        yield store, service, channel, metrics


@pytest.mark.conformance("30")
@pytest.mark.case("D7")
async def test_30_d7_a_b_nothing_is_served_until_the_first_complete_read(short_tmp_path):
    async with serving(short_tmp_path) as (store, _, channel, _):
        early = RawClient(channel)
        with contextlib.suppress(grpc.aio.AioRpcError):  # refused before the request is out
            await early.send(CLUSTER)
        assert await early.code() is grpc.StatusCode.UNAVAILABLE
        store.publish(PLAN)
        late = RawClient(channel)
        await late.send(CLUSTER)
        assert [item.name for item in (await late.receive()).resources] == ["acme_2Ffox"]


@pytest.mark.case("D7")
async def test_d7_a_reconnect_gets_nothing_that_it_holds_and_an_answer_for_what_is_gone(
    short_tmp_path,
):
    async with serving(short_tmp_path) as (store, _, channel, _):
        store.publish(PLAN)
        first = RawClient(channel)
        await first.send(CLUSTER)
        response = await first.receive()
        held = {item.name: item.version for item in response.resources}
        first.call.cancel()

        again = RawClient(channel)
        await again.send(CLUSTER, initial_resource_versions=held)
        await again.silence()
        again = RawClient(channel)
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
    async with serving(short_tmp_path) as (store, service, channel, metrics):
        store.publish(PLAN)
        client = RawClient(channel)
        await client.send(ENDPOINT, resource_names_subscribe=["acme_2Ffox"])
        response = await client.receive()
        await client.send(ENDPOINT, response_nonce=response.nonce, error="acme_2Ffox is bad")
        reading = asyncio.ensure_future(client.receive())
        await asyncio.sleep(0.3)
        assert not reading.done()
        ((status,),) = (stream.types for stream in service.status())
        assert (status.state, status.last_error) == ("ERROR", "acme_2Ffox is bad")
        assert (
            metrics.registry.get_sample_value(
                "wattmesh_xds_requests_total", {"type": "ClusterLoadAssignment", "kind": "nack"}
            )
            == 1
        )
        store.publish(OTHER)
        fixed = await reading
        assert [item.name for item in fixed.resources] == ["acme_2Ffox"]


async def test_a_change_reaches_every_stream_and_only_what_changed(short_tmp_path):
    async with serving(short_tmp_path) as (store, service, channel, _):
        store.publish(PLAN)
        clients = [RawClient(channel) for _ in range(3)]
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
    async with serving(short_tmp_path) as (store, _, channel, _):
        store.publish(PLAN)
        client = RawClient(channel)
        await client.send(LISTENER, metadata=metadata)
        assert await client.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert told in await client.call.details()


async def test_a_gone_stream_leaves_nothing(short_tmp_path):
    async with serving(short_tmp_path) as (store, service, channel, metrics):
        store.publish(PLAN)
        client = RawClient(channel)
        await client.send(CLUSTER)
        await client.receive()
        assert len(service.status()) == 1
        client.call.cancel()
        await eventually(lambda: not service.status())
        assert metrics.registry.get_sample_value("wattmesh_xds_streams", {"role": "edge"}) == 0


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
        grpc.aio.insecure_channel(str(address)) as channel,
    ):
        store.publish(PLAN)
        client = RawClient(channel)
        await client.send(CLUSTER)
        assert (await client.receive()).type_url == CLUSTER

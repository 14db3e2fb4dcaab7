"""Every service and variant over the wire: what a raw client of each is sent."""

import asyncio
import contextlib

import grpc
import pytest
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2

from control_plane.addresses import UnixSocket
from control_plane.ads import AdsService, serve_ads
from control_plane.metrics import Metrics
from control_plane.resources import build_resources
from control_plane.snapshot import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    ROUTE,
    RUNTIME,
    make_snapshot,
)
from control_plane.store import SnapshotStore
from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry

conformance = pytest.mark.conformance
PLAN = make_plan(consul_entry("n1.e1"))
CHANGED = make_plan(consul_entry("n1.e1", gpu_power="50"), consul_entry("n2.e1", port=9902))
POOL = "acme_2Ffox"
SERVICES = {
    CLUSTER: ("envoy.service.cluster.v3.ClusterDiscoveryService", "Clusters", POOL),
    ENDPOINT: ("envoy.service.endpoint.v3.EndpointDiscoveryService", "Endpoints", POOL),
    LISTENER: ("envoy.service.listener.v3.ListenerDiscoveryService", "Listeners", "edge"),
    ROUTE: ("envoy.service.route.v3.RouteDiscoveryService", "Routes", "edge"),
    RUNTIME: ("envoy.service.runtime.v3.RuntimeDiscoveryService", "Runtime", "wattmesh"),
    EXTENSION: (
        "envoy.service.extension.v3.ExtensionConfigDiscoveryService",
        "ExtensionConfigs",
        "request-limits",
    ),
}


class Stream:
    """One stream of any service; every answer is awaited with a deadline."""

    def __init__(self, call, request):
        self.call = call
        self._request = request

    async def send(self, *, error=None, **fields):
        request = self._request(**fields)
        request.node.id = "edge-1"
        request.node.metadata.update(
            {"role": "edge", "listen_address": "127.0.0.1", "listen_port": 10000}
        )
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


def sotw(channel):
    """Open the aggregated stream of the state-of-the-world variant."""
    stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel)
    return Stream(stub.StreamAggregatedResources(), discovery_pb2.DiscoveryRequest)


def of_one_type(channel, type_url, variant):
    """Open a stream of a type's own service."""
    service, noun, _ = SERVICES[type_url]
    delta = variant == "Delta"
    request = discovery_pb2.DeltaDiscoveryRequest if delta else discovery_pb2.DiscoveryRequest
    response = discovery_pb2.DeltaDiscoveryResponse if delta else discovery_pb2.DiscoveryResponse
    call = channel.stream_stream(
        f"/{service}/{variant}{noun}",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )
    return Stream(call(), request)


@contextlib.asynccontextmanager
async def serving(path):
    metrics = Metrics()
    store = SnapshotStore(lambda plan, view: make_snapshot(build_resources(plan, view)), metrics)
    service = AdsService(store, metrics)
    address = UnixSocket(str(path / "xds.sock"))
    async with serve_ads(service, [address]), grpc.aio.insecure_channel(str(address)) as channel:
        yield store, service, channel


@conformance("7")
@conformance("15")
@conformance("21")
@conformance("28")
async def test_7_15_21_28_the_aggregated_stream_of_the_whole_state(short_tmp_path):
    async with serving(short_tmp_path) as (store, service, channel):
        store.publish(PLAN)
        client = sotw(channel)
        await client.send(type_url=CLUSTER)
        clusters = await client.receive()
        assert [body.type_url for body in clusters.resources] == [CLUSTER]
        ack = {"version_info": clusters.version_info, "response_nonce": clusters.nonce}
        await client.send(type_url=CLUSTER, **ack)
        await client.silence()

        client = sotw(channel)
        await client.send(type_url=ENDPOINT, resource_names=[POOL], version_info="whatever")
        endpoints = await client.receive()
        assert len(endpoints.resources) == 1
        await client.send(
            type_url=ENDPOINT,
            resource_names=[POOL],
            version_info=endpoints.version_info,
            response_nonce=endpoints.nonce,
        )
        store.publish(CHANGED)
        moved = await client.receive()
        assert moved.version_info != endpoints.version_info
        assert moved.nonce != endpoints.nonce
        assert {status.node for status in service.status()} == {"edge-1"}


@conformance("8")
async def test_8_a_refused_version_is_not_sent_again_on_the_whole_state(short_tmp_path):
    async with serving(short_tmp_path) as (store, _, channel):
        store.publish(PLAN)
        client = sotw(channel)
        await client.send(type_url=ENDPOINT, resource_names=[POOL])
        first = await client.receive()
        await client.send(
            type_url=ENDPOINT, resource_names=[POOL], response_nonce=first.nonce, error="no"
        )
        await client.silence()


@conformance("30")
async def test_30_before_the_first_plan_every_service_says_come_back(short_tmp_path):
    async with serving(short_tmp_path) as (_, _, channel):
        for stream in (
            sotw(channel),
            of_one_type(channel, CLUSTER, "Delta"),
            of_one_type(channel, ROUTE, "Stream"),
        ):
            assert await stream.code() is grpc.StatusCode.UNAVAILABLE


@conformance("3")
@pytest.mark.parametrize("variant", ["Stream", "Delta"])
@pytest.mark.parametrize("type_url", SERVICES, ids=lambda url: url.rpartition(".")[2])
async def test_3_a_service_of_one_type_implies_it(short_tmp_path, type_url, variant):
    name = SERVICES[type_url][2]
    names = "resource_names_subscribe" if variant == "Delta" else "resource_names"
    async with serving(short_tmp_path) as (store, _, channel):
        store.publish(PLAN)
        stream = of_one_type(channel, type_url, variant)
        await stream.send(**{names: [name]})
        response = await stream.receive()
        assert response.type_url == type_url
        assert len(response.resources) == 1
        wrong = of_one_type(channel, type_url, variant)
        await wrong.send(type_url="type.googleapis.com/another")
        assert await wrong.code() is grpc.StatusCode.INVALID_ARGUMENT


@conformance("50")
async def test_50_a_stream_that_ends_leaves_nothing_behind(short_tmp_path):
    async with serving(short_tmp_path) as (store, service, channel):
        store.publish(PLAN)
        for variant in ("Stream", "Delta"):
            stream = of_one_type(channel, CLUSTER, variant)
            await stream.send()
            await stream.receive()
            assert len(service.status()) == 1
            stream.call.cancel()
            async with asyncio.timeout(5):
                while service.status():  # noqa: ASYNC110 it rings no bell
                    await asyncio.sleep(0.01)

"""Every service and variant over the wire: what a raw client of each is sent."""

import contextlib

import grpc
import pytest

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
from tests.support.eventually import eventually
from tests.support.xds_wire import Wire

conformance = pytest.mark.conformance
PLAN = make_plan(consul_entry("n1.e1"))
CHANGED = make_plan(consul_entry("n1.e1", gpu_power="50"), consul_entry("n2.e1", port=9902))
POOL = "acme_2Ffox"
NAMES = {
    CLUSTER: POOL,
    ENDPOINT: POOL,
    LISTENER: "edge",
    ROUTE: "edge",
    RUNTIME: "wattmesh",
    EXTENSION: "request-limits",
}


@contextlib.asynccontextmanager
async def serving(path):
    metrics = Metrics()
    store = SnapshotStore(lambda plan, view: make_snapshot(build_resources(plan, view)), metrics)
    service = AdsService(store, metrics)
    address = UnixSocket(str(path / "xds.sock"))
    async with serve_ads(service, [address]), Wire(str(address)) as wire:
        yield store, service, wire


@conformance("7")
@conformance("15")
@conformance("21")
@conformance("28")
async def test_7_15_21_28_the_aggregated_stream_of_the_whole_state(short_tmp_path):
    async with serving(short_tmp_path) as (store, service, wire):
        store.publish(PLAN)
        client = wire.open("sotw")
        await client.send(type_url=CLUSTER)
        clusters = await client.receive()
        assert [body.type_url for body in clusters.resources] == [CLUSTER]
        ack = {"version_info": clusters.version_info, "response_nonce": clusters.nonce}
        await client.send(type_url=CLUSTER, **ack)
        await client.silence()

        client = wire.open("sotw")
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
    async with serving(short_tmp_path) as (store, _, wire):
        store.publish(PLAN)
        client = wire.open("sotw")
        await client.send(type_url=ENDPOINT, resource_names=[POOL])
        first = await client.receive()
        await client.send(
            type_url=ENDPOINT, resource_names=[POOL], response_nonce=first.nonce, error="no"
        )
        await client.silence()


@conformance("30")
async def test_30_before_the_first_plan_every_service_says_come_back(short_tmp_path):
    async with serving(short_tmp_path) as (_, _, wire):
        for stream in (
            wire.open("sotw"),
            wire.open("delta", only_type=CLUSTER),
            wire.open("sotw", only_type=ROUTE),
        ):
            assert await stream.code() is grpc.StatusCode.UNAVAILABLE


@conformance("3")
@pytest.mark.parametrize("variant", ["sotw", "delta"])
@pytest.mark.parametrize("type_url", NAMES, ids=lambda url: url.rpartition(".")[2])
async def test_3_a_service_of_one_type_implies_it(short_tmp_path, type_url, variant):
    name = NAMES[type_url]
    names = "resource_names_subscribe" if variant == "delta" else "resource_names"
    async with serving(short_tmp_path) as (store, _, wire):
        store.publish(PLAN)
        stream = wire.open(variant, only_type=type_url)
        await stream.send(**{names: [name]})
        response = await stream.receive()
        assert response.type_url == type_url
        assert len(response.resources) == 1
        wrong = wire.open(variant, only_type=type_url)
        await wrong.send(type_url="type.googleapis.com/another")
        assert await wrong.code() is grpc.StatusCode.INVALID_ARGUMENT


@conformance("50")
async def test_50_a_stream_that_ends_leaves_nothing_behind(short_tmp_path):
    async with serving(short_tmp_path) as (store, service, wire):
        store.publish(PLAN)
        for variant in ("sotw", "delta"):
            stream = wire.open(variant, only_type=CLUSTER)
            await stream.send()
            await stream.receive()
            assert len(service.status()) == 1
            await stream.close()
            await eventually(lambda: not service.status())

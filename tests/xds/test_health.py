"""The standard health service, on every address where ADS is served."""

import contextlib

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from control_plane.addresses import UnixSocket
from control_plane.ads import AdsService, serve_ads
from control_plane.metrics import Metrics
from control_plane.plan import Plan
from control_plane.resources import Resources
from control_plane.snapshot import make_snapshot
from control_plane.store import SnapshotStore

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@contextlib.asynccontextmanager
async def serving(path):
    metrics = Metrics()
    store = SnapshotStore(lambda _plan, _view: make_snapshot(Resources()), metrics)
    address = UnixSocket(str(path / "xds.sock"))
    async with (
        serve_ads(AdsService(store, metrics), [address]),
        grpc.aio.insecure_channel(str(address)) as channel,
    ):
        yield store, health_pb2_grpc.HealthStub(channel)


def ask(service=""):
    return health_pb2.HealthCheckRequest(service=service)


async def test_a_server_is_healthy_once_it_has_a_plan(short_tmp_path):
    async with serving(short_tmp_path) as (store, stub):
        assert (await stub.Check(ask())).status == NOT_SERVING
        store.publish(Plan())
        assert (await stub.Check(ask())).status == SERVING


async def test_a_watcher_is_told_of_the_change(short_tmp_path):
    async with serving(short_tmp_path) as (store, stub):
        watch = stub.Watch(ask())
        assert (await watch.read()).status == NOT_SERVING
        store.publish(Plan())
        assert (await watch.read()).status == SERVING
        watch.cancel()


async def test_only_the_server_as_a_whole_is_known(short_tmp_path):
    async with serving(short_tmp_path) as (store, stub):
        store.publish(Plan())
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.Check(ask("envoy.service.discovery.v3.AggregatedDiscoveryService"))
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(ask("made up"))
        assert (await watch.read()).status == UNKNOWN
        watch.cancel()

"""How streams begin: at a bounded rate, by the newest of queued requests; and who is stuck."""

import contextlib

import grpc
import pytest
import structlog

from control_plane.addresses import UnixSocket
from control_plane.ads import AdsService, serve_ads
from control_plane.connect_rate import ConnectRate
from control_plane.metrics import Metrics
from control_plane.orphans import ORPHAN_S
from control_plane.plan import Plan
from control_plane.resources import Resources
from control_plane.snapshot import CLUSTER, ENDPOINT, make_snapshot
from control_plane.store import SnapshotStore
from tests.support.eventually import eventually
from tests.support.xds import make_assignment, make_cluster
from tests.support.xds_wire import Wire, make_node, names

NODE = make_node("n1", role="node")
POOLS = ("A", "B", "C")
UNLIMITED = ConnectRate()
ONE_A_DAY = ConnectRate(streams_per_s=1 / 86_400, burst_streams=1, max_wait_s=5.0)
AMPLE_S = 0.5  # for what lies there to be read, on a machine that does much else
SLOW = ConnectRate(streams_per_s=2.0, burst_streams=1, max_wait_s=5.0)


@contextlib.asynccontextmanager
async def serving(path, rate=UNLIMITED, queued_s=0.002):
    address, metrics = UnixSocket(str(path / "xds.sock")), Metrics()
    world = make_snapshot(
        Resources(
            clusters=tuple(make_cluster(name) for name in POOLS),
            endpoints=tuple(make_assignment(name, 1) for name in POOLS),
        )
    )
    store = SnapshotStore(lambda *_: world, metrics)
    store.publish(Plan(max_request_bytes=1))
    service = AdsService(store, metrics, connect_rate=rate, queued_s=queued_s)
    async with serve_ads(service, [address]), Wire(str(address)) as wire:
        yield service, wire, metrics


def opened(metrics, result):
    labels = {"result": result}
    return metrics.registry.get_sample_value("wattmesh_xds_new_streams_total", labels) or 0


async def test_a_stream_over_the_rate_waits_for_its_turn(short_tmp_path):
    async with serving(short_tmp_path, SLOW) as (_, wire, metrics):
        for _ in range(2):
            stream = wire.open("delta", node=NODE)
            assert names(await stream.subscribe(CLUSTER)) == list(POOLS)
        assert (opened(metrics, "at_once"), opened(metrics, "delayed")) == (1, 1)


async def test_a_stream_that_would_wait_too_long_is_told_to_come_again(short_tmp_path):
    async with serving(short_tmp_path, ONE_A_DAY) as (service, wire, metrics):
        first = wire.open("delta", node=NODE)
        await first.subscribe(CLUSTER)
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                late = wire.open("delta", node=NODE)
                with contextlib.suppress(grpc.aio.AioRpcError):  # refused before it is out
                    await late.send(CLUSTER)
                assert await late.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert opened(metrics, "refused") == 3
        assert [entry["log_level"] for entry in logs] == ["warning"]  # not with each of them
        assert names(await first.subscribe(ENDPOINT, "A")) == ["A"]
        assert len(service.status()) == 1


@pytest.mark.conformance("27")
@pytest.mark.parametrize("variant", ["sotw", "delta"])
async def test_27_of_several_requests_that_lie_there_the_newest_is_answered(
    short_tmp_path, variant
):
    async with serving(short_tmp_path, SLOW, AMPLE_S) as (_, wire, _):
        await wire.open(variant, node=NODE).subscribe(CLUSTER)
        stream = wire.open(variant, node=NODE)
        for wanted in (("A",), ("A", "B"), ("C",)):  # read no earlier than the stream's turn
            await stream.want(ENDPOINT, *wanted)
        assert names(await stream.take()) == ["C"]
        await stream.silence()


@pytest.mark.conformance("27")
async def test_27_a_flood_of_requests_does_not_keep_answers_back(short_tmp_path):
    async with serving(short_tmp_path, SLOW, AMPLE_S) as (_, wire, _):
        await wire.open("delta", node=NODE).subscribe(CLUSTER)
        stream = wire.open("delta", node=NODE)
        await stream.want(ENDPOINT, "A")
        for _ in range(40):
            await stream.send(ENDPOINT, resource_names_subscribe=["B"])
        assert names(await stream.take()) == ["A", "B"]  # after 32 of them
        assert names(await stream.take()) == ["B"]


@pytest.mark.conformance("63b")
async def test_63b_the_alarm_is_logged_and_counted(short_tmp_path):
    async with serving(short_tmp_path) as (service, wire, metrics):
        stream = wire.open("delta", node=NODE)
        await stream.send(
            ENDPOINT, resource_names_subscribe=["A"], initial_resource_versions={"A": "v0"}
        )
        await stream.receive()
        ((state, _),) = service._streams.items()
        state.orphans.pass_time(float("inf"))
        with structlog.testing.capture_logs() as logs:
            await stream.send(ENDPOINT, resource_names_subscribe=["B"])
            await eventually(lambda: logs)
        (entry,) = logs
        assert (entry["log_level"], entry["node"]) == ("warning", "n1")
        assert entry["after_s"] == ORPHAN_S
        assert metrics.registry.get_sample_value("wattmesh_xds_orphaned_streams_total") == 1

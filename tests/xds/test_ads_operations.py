"""What an operator sees of the server: refusals with a reason, counts, and a stop that ends."""

import contextlib
import socket
import time
from pathlib import Path

import grpc
import pytest
import structlog

from control_plane.addresses import AddressError, HostPort, UnixSocket
from control_plane.ads import AdsService, serve_ads
from control_plane.errors import PayloadError
from control_plane.metrics import Metrics
from control_plane.plan import Plan
from control_plane.resources import Resources
from control_plane.snapshot import CLUSTER, ENDPOINT, make_snapshot
from control_plane.store import SnapshotStore
from tests.support.eventually import eventually
from tests.support.xds import make_assignment, make_cluster
from tests.support.xds_wire import Wire, make_node

NODE = make_node("n1", role="node")


class Served:
    """A running server whose content a test sets by hand: pools with one engine each."""

    def __init__(self, path: Path) -> None:
        self.address = UnixSocket(str(path / "xds.sock"))
        self.metrics = Metrics()
        self.pools: tuple[str, ...] = ("A",)
        self.refuse = False
        self.store = SnapshotStore(self._render, self.metrics)
        self.service = AdsService(self.store, self.metrics)
        self._plans = 0

    def _render(self, _plan, _view):
        if self.refuse:
            raise PayloadError(["no good"])
        return make_snapshot(
            Resources(
                clusters=tuple(make_cluster(name) for name in self.pools),
                endpoints=tuple(make_assignment(name, 1) for name in self.pools),
            )
        )

    def publish(self, *pools: str) -> None:
        self.pools = pools
        self._plans += 1
        self.store.publish(Plan(max_request_bytes=self._plans))

    def count(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


@contextlib.asynccontextmanager
async def serving(path):
    served = Served(path)
    async with (
        serve_ads(served.service, [served.address]),
        Wire(str(served.address)) as wire,
    ):
        yield served, wire


@pytest.mark.conformance("4")
async def test_4_an_unknown_type_is_logged_once_counted_and_costs_the_others_nothing(
    short_tmp_path,
):
    async with serving(short_tmp_path) as (served, wire):
        served.publish("A")
        with structlog.testing.capture_logs() as logs:
            stream = wire.open("delta", node=NODE)
            for _ in range(3):
                await stream.send("type.googleapis.com/acme.Made.Up")
            await stream.send(CLUSTER)
            assert [item.name for item in (await stream.receive()).resources] == ["A"]
        told = [entry for entry in logs if entry["event"] == "type not served, ignored"]
        assert [entry["type"] for entry in told] == ["type.googleapis.com/acme.Made.Up"]
        labels = {"type": "other", "kind": "unknown_type"}
        assert served.count("wattmesh_xds_requests_total", **labels) == 3


@pytest.mark.conformance("8")
@pytest.mark.case("D5")
async def test_8_d5_a_nack_is_logged_with_all_that_finds_the_culprit(short_tmp_path):
    async with serving(short_tmp_path) as (served, wire):
        served.publish("A", "B")
        stream = wire.open("delta", node=NODE)
        await stream.send(CLUSTER)
        response = await stream.receive()
        dump = "secret-looking proto dump " * 500
        error = f"{dump}Error adding/updating cluster(s) B: no good"
        with structlog.testing.capture_logs() as logs:
            await stream.send(CLUSTER, response_nonce=response.nonce, error=error)
            await eventually(lambda: any(entry["log_level"] == "warning" for entry in logs))
        (entry,) = [entry for entry in logs if entry["log_level"] == "warning"]
        assert (entry["node"], entry["type"], entry["nonce"]) == ("n1", "Cluster", response.nonce)
        refused = next(item for item in response.resources if item.name == "B")
        assert entry["resources"] == {"B": refused.version}
        assert entry["reason"].endswith("cluster(s) B: no good")
        assert len(entry["reason"]) == 500


@pytest.mark.case("D7")
async def test_d7_a_restarted_envoy_gets_the_last_good_content_while_its_new_one_is_refused(
    short_tmp_path,
):
    async with serving(short_tmp_path) as (served, wire):
        served.publish("A")
        stream = wire.open("delta", node=NODE)
        await stream.send(CLUSTER)
        await stream.receive()
        served.refuse = True
        served.publish("A", "bad")
        await eventually(lambda: bool(served.store.refused))
        await stream.close()
        await eventually(lambda: not served.service.status())
        again = wire.open("delta", node=NODE)
        await again.send(CLUSTER)
        assert [item.name for item in (await again.receive()).resources] == ["A"]


async def test_bytes_that_are_no_request_end_their_stream_only(short_tmp_path):
    async with serving(short_tmp_path) as (served, wire):
        served.publish("A")
        garbage = wire.open("delta", node=NODE)
        await garbage.send_bytes(b"\xff\xff\xff\xff")
        assert await garbage.code() is not grpc.StatusCode.OK
        stream = wire.open("delta", node=NODE)
        await stream.send(ENDPOINT, resource_names_subscribe=["A"])
        assert [item.name for item in (await stream.receive()).resources] == ["A"]


async def test_a_refused_stream_is_told_and_logged(short_tmp_path):
    async with serving(short_tmp_path) as (served, wire):
        served.publish("A")
        with structlog.testing.capture_logs() as logs:
            stream = wire.open("delta", node=None)
            await stream.send(CLUSTER)
            assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
        (entry,) = [entry for entry in logs if entry["log_level"] == "warning"]
        assert (entry["status"], "node.id" in entry["reason"]) == ("INVALID_ARGUMENT", True)
        assert served.service.status() == []


async def test_a_stop_with_open_streams_is_bounded(short_tmp_path):
    started = 0.0
    async with serving(short_tmp_path) as (served, wire):
        served.publish("A")
        streams = [wire.open("delta", node=NODE) for _ in range(5)]
        for stream in streams:
            await stream.send(CLUSTER)
            await stream.receive()
        started = time.monotonic()
    assert time.monotonic() - started < 4
    assert served.service.status() == []
    assert not (short_tmp_path / "xds.sock").exists()


async def test_a_leftover_socket_is_taken_over(short_tmp_path):
    path = short_tmp_path / "xds.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with serving(short_tmp_path) as (served, wire):
        served.publish("A")
        stream = wire.open("delta", node=NODE)
        await stream.send(CLUSTER)
        assert (await stream.receive()).type_url == CLUSTER


async def test_an_address_that_is_taken_says_which(short_tmp_path):
    with _listening() as port:
        metrics = Metrics()
        service = AdsService(SnapshotStore(lambda *_: None, metrics), metrics)
        with pytest.raises(AddressError, match=rf"xDS address 127\.0\.0\.1:{port}"):
            async with serve_ads(service, [HostPort("127.0.0.1", port)]):
                pass


@contextlib.contextmanager
def _listening():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.mark.conformance("78")
async def test_78_a_response_near_4_mib_raises_an_alarm_once(short_tmp_path):
    async with serving(short_tmp_path) as (served, wire):
        names = [f"{index:05}-{'x' * 200}" for index in range(12_000)]
        served.publish(*names)
        with structlog.testing.capture_logs() as logs:
            for _ in range(2):
                stream = wire.open("delta", node=NODE)
                await stream.send(CLUSTER)
                with contextlib.suppress(grpc.aio.AioRpcError):  # our own client refuses it too
                    await stream.receive()
                await stream.close()
            alarms = [entry for entry in logs if "4 MiB" in entry["event"]]
        assert [(entry["type"], entry["node"]) for entry in alarms] == [("Cluster", "n1")]
        size = served.count("wattmesh_xds_largest_response_bytes", type="Cluster")
        assert size is not None
        assert size > 3 * 1024 * 1024

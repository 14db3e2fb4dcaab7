"""The Consul watch against a hand-written Consul that honours index and wait."""

import asyncio

import pytest
import structlog

from control_plane.catalog import Catalog, CatalogParser
from control_plane.consul_catalog import (
    Position,
    WatchTimes,
    next_position,
    open_consul,
    watch_consul,
)
from control_plane.errors import WattmeshError
from control_plane.guard import CatalogRead
from control_plane.metrics import Metrics
from tests.support.eventually import eventually
from tests.support.fake_consul import Answer, FakeConsul

conformance = pytest.mark.conformance
FAST = WatchTimes(wait_s=1, min_interval_s=0.01, retry_first_s=0.01, retry_max_s=0.05)

EMPTIED_BY_ACLS = Answer("9", body=b"[]", headers={"X-Consul-Results-Filtered-By-ACLs": "true"})


async def collect(consul: FakeConsul, queries: int, times: WatchTimes = FAST) -> list[CatalogRead]:
    """Return what a watch yields until Consul was asked so often."""
    reads: list[CatalogRead] = []

    async def follow() -> None:
        async for read in watch_consul(consul.address, metrics=Metrics(), times=times):
            reads.append(read)

    task = asyncio.create_task(follow())
    await eventually(lambda: len(consul.asked) >= queries, within_s=10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return reads


class Moody(CatalogParser):
    """A parser that breaks off where it should not."""

    def parse(self, data: bytes) -> Catalog:
        if data == b"moody":
            raise KeyError("mood")
        return super().parse(data)


async def test_an_answer_that_breaks_the_parser_leaves_the_last_catalog_in_force() -> None:
    consul = FakeConsul([Answer("1"), Answer("2", body=b"moody"), Answer("3", power="300")])
    metrics = Metrics()
    async with consul.serve():
        watch = watch_consul(consul.address, metrics=metrics, times=FAST, parser=Moody("consul"))
        reads = [await anext(watch), await anext(watch)]
        await watch.aclose()
    assert powers(reads) == [100, 300]
    labels = {"where": "catalog"}
    assert metrics.registry.get_sample_value("wattmesh_unexpected_errors_total", labels) == 1


def powers(reads: list[CatalogRead]) -> list[float | None]:
    return [read.catalog.entries[0].metadata.gpu_power for read in reads]


@pytest.mark.parametrize(
    ("position", "header", "expected"),
    [
        pytest.param(Position(), "500", (Position(500, 500), False), id="first answer"),
        pytest.param(Position(500, 500), "500", (Position(500, 500), False), id="time-out"),
        pytest.param(Position(500, 500), "480", (Position(480, 0), True), id="lower: start over"),
        pytest.param(Position(480, 0), "480", (Position(480, 480), False), id="started over"),
        pytest.param(Position(480, 480), "0", (Position(0, 1), True), id="0 counts as 1"),
        pytest.param(Position(480, 480), None, (Position(0, 1), True), id="missing counts as 1"),
        pytest.param(Position(480, 480), "-3", (Position(0, 1), True), id="negative counts as 1"),
        pytest.param(Position(480, 480), "x", (Position(0, 1), True), id="no number"),
        pytest.param(Position(0, 1), "3", (Position(3, 3), False), id="upwards again"),
    ],
)
@conformance("consul-1")
def test_consul_1_index_rules(
    position: Position, header: str | None, expected: tuple[Position, bool]
) -> None:
    assert next_position(position, header) == expected


@pytest.mark.case("G5")
@conformance("consul-1")
@conformance("consul-7")
async def test_consul_1_7_g5_index_that_goes_backwards() -> None:
    script = [
        Answer("500", power="1"),
        Answer("480", power="1"),
        Answer("480", power="2"),
        Answer("0", power="2"),
        Answer(None, power="3"),
        Answer("3", power="4"),
    ]
    consul = FakeConsul(script)
    async with consul.serve():
        reads = await collect(consul, 7)
    assert consul.asked == [None, "500", None, "480", "1", "1", "3"]
    assert powers(reads) == [1, 2, 3, 4]
    assert [read.reset for read in reads] == [False, True, True, False]


@pytest.mark.case("G5")
@conformance("consul-2")
async def test_consul_2_g5_moved_index_with_equal_content_is_no_event() -> None:
    consul = FakeConsul([Answer("5"), Answer("5"), Answer("6"), Answer("7", power="2")])
    async with consul.serve():
        reads = await collect(consul, 5)
    assert powers(reads) == [100, 2]


@pytest.mark.case("G5")
@conformance("consul-4")
async def test_consul_4_g5_never_a_tight_loop() -> None:
    consul = FakeConsul([Answer("0")] * 1000)
    times = WatchTimes(wait_s=1, min_interval_s=0.1)
    async with consul.serve():
        task = asyncio.create_task(collect(consul, 1000, times))
        await asyncio.sleep(0.55)
        task.cancel()
        await asyncio.wait([task])
    assert 2 <= len(consul.asked) <= 7


@conformance("consul-3")
@pytest.mark.parametrize("wait_s", [1, WatchTimes().wait_s, 600])
def test_consul_3_our_time_out_is_longer_than_consuls(wait_s: int) -> None:
    assert WatchTimes(wait_s=wait_s).timeout_s > wait_s + wait_s / 16
    assert WatchTimes().wait_s <= 600  # Consul's most


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(Answer("9", status=500), id="500"),
        pytest.param(
            Answer("9", status=403, body=b"ACL not found"), id="403", marks=conformance("consul-12")
        ),
        pytest.param(Answer("9", status=429), id="429", marks=conformance("consul-14")),
        pytest.param(Answer("9", status=503), id="503", marks=conformance("consul-14")),
        pytest.param(Answer("9", body=b'[{"Node"'), id="cut JSON"),
        pytest.param(Answer("9", body=b"{}"), id="no list"),
        pytest.param(EMPTIED_BY_ACLS, id="emptied by ACLs", marks=conformance("consul-9")),
    ],
)
@conformance("consul-5")
async def test_consul_5_failed_read_starts_over_and_changes_nothing(bad: Answer) -> None:
    consul = FakeConsul([Answer("5"), bad, Answer("5", power="2")])
    async with consul.serve():
        reads = await collect(consul, 4)
    assert consul.asked == [None, "5", None, "5"]
    assert powers(reads) == [100, 2]
    assert [read.reset for read in reads] == [False, True]


@conformance("consul-9")
async def test_consul_9_a_list_that_acls_emptied_is_told_once() -> None:
    consul = FakeConsul([Answer("5"), EMPTIED_BY_ACLS, EMPTIED_BY_ACLS, Answer("6", power="2")])
    with structlog.testing.capture_logs() as logs:
        async with consul.serve():
            await collect(consul, 5)
    (alarm,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert alarm["event"] == "consul cannot be read, the last catalog stays in force"
    assert alarm["error"] == "Consul's ACLs hide every engine from this token"


@conformance("consul-9")
async def test_consul_9_a_list_that_is_empty_without_acls_is_a_read() -> None:
    consul = FakeConsul([Answer("5"), Answer("6", body=b"[]")])
    async with consul.serve():
        reads = await collect(consul, 3)
    assert [len(read.catalog.entries) for read in reads] == [1, 0]


async def test_consul_away_and_back_is_noticed_within_two_seconds() -> None:
    consul, metrics = FakeConsul([Answer("5")]), Metrics()
    reads: list[CatalogRead] = []

    async def follow() -> None:
        async for read in watch_consul(consul.address, metrics=metrics):
            reads.append(read)

    async with consul.serve():
        task = asyncio.create_task(follow())
        await eventually(lambda: reads)
    await asyncio.sleep(1.0)
    consul.say(Answer("2", power="2"))
    async with consul.serve(int(consul.address.rpartition(":")[2])):
        await eventually(lambda: len(reads) == 2, within_s=2.0)
        task.cancel()
        await asyncio.wait([task])
    assert reads[1].reset
    assert metrics.catalog_reads.labels("error")._value.get() >= 1


@conformance("consul-13")
async def test_consul_13_the_token_goes_in_its_header_and_in_no_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CONSUL_HTTP_TOKEN", raising=False)
    consul = FakeConsul([Answer("5")])
    async with consul.serve():
        async for _ in watch_consul(consul.address, token="secret", metrics=Metrics(), times=FAST):
            break
    assert consul.tokens == ["secret"]
    assert not [url for url in consul.urls if "secret" in url]


@pytest.mark.parametrize("address", ["unix:///x", "http://", "host:port", "http://h:99999", ""])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(WattmeshError, match="expected"):
        open_consul(address, None)

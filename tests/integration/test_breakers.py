"""Real Envoys: thresholds arrive by RTDS, hold at once, and leave clusters and streams alone."""

import asyncio
import contextlib
import time

import aiohttp
import pytest
from aiohttp import web

from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry
from tests.support.envoy_lab import chat, running_lab

pytestmark = pytest.mark.envoy
CLUSTER = "acme_2Ffox"


def plan_of(lab, *, seqs="1", policy="{}", more=()):
    names = ("e0", *more)
    return make_plan(
        *(
            consul_entry(
                f"n1.{name}", port=lab.node_port, max_num_seqs=seqs, socket=lab.socket(name)
            )
            for name in names
        ),
        policy=policy,
    )


@contextlib.asynccontextmanager
async def holding_engine(lab, release):
    """Serve an engine that answers no prompt before `release` is set."""

    async def answer(request):
        await request.read()
        if request.path != "/health":
            await release.wait()
        return web.json_response({})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, lab.socket("e0")).start()
    try:
        yield
    finally:
        release.set()
        await runner.cleanup()


@pytest.fixture
async def lab(short_tmp_path):
    async with running_lab(short_tmp_path) as lab:
        yield lab


async def post(session, lab):
    began = time.monotonic()
    async with session.post(
        f"{lab.url}/v1/chat/completions", data=chat(), headers={"content-type": "application/json"}
    ) as response:
        body = await response.json(content_type=None)
        return response.status, body, response.headers, time.monotonic() - began


@pytest.mark.case("H5")
async def test_h5_three_pass_three_are_refused_at_once_and_no_failure_is_counted(lab):
    release = asyncio.Event()
    lab.store.publish(plan_of(lab, policy="defaults: {max_queue: 0}"))
    async with (
        holding_engine(lab, release),
        lab.envoy("node", "n1"),
        lab.envoy("edge", "edge-1"),
        aiohttp.ClientSession() as session,
    ):
        calls = [asyncio.create_task(post(session, lab)) for _ in range(6)]
        refused = []
        for done in asyncio.as_completed(calls):
            refused.append(await done)
            if len(refused) == 3:
                break
        assert [status for status, *_ in refused] == [503, 503, 503]
        for _, body, headers, _ in refused:
            assert body["error"]["code"] == "overloaded"
            assert int(headers["retry-after"]) >= 1
        assert sum(call.done() for call in calls) == 3  # the others are being served
        release.set()
        assert (
            sorted(status for status, *_ in await asyncio.gather(*calls)) == [200] * 3 + [503] * 3
        )
        stats = await lab.stats("n1")
        assert stats[f"cluster.{CLUSTER}.upstream_rq_active_overflow"] >= 3
        assert (await post(session, lab))[0] == 200  # the engine was not taken for a failing one
        edge = await lab.stats("edge-1")
        assert edge.get(f"cluster.{CLUSTER}.outlier_detection.ejections_enforced_total", 0) == 0


async def test_a_queue_waits_in_envoy_until_the_engine_has_room(lab):
    release = asyncio.Event()
    lab.store.publish(plan_of(lab))
    async with (
        holding_engine(lab, release),
        lab.envoy("node", "n1"),
        lab.envoy("edge", "edge-1"),
        aiohttp.ClientSession() as session,
    ):
        calls = [asyncio.create_task(post(session, lab)) for _ in range(10)]

        waiting = f"cluster.{CLUSTER}.upstream_rq_pending_active"
        async with asyncio.timeout(5):
            while (await lab.stats("n1"))[waiting] != 7:  # noqa: ASYNC110 it rings no bell
                await asyncio.sleep(0.02)
        assert not any(call.done() for call in calls)
        release.set()
        assert [status for status, *_ in await asyncio.gather(*calls)] == [200] * 10


async def test_thresholds_move_by_rtds_while_the_cluster_stays(lab):
    lab.store.publish(plan_of(lab))
    async with lab.engine("e0"), lab.envoy("node", "n1"):
        assert await limit(lab, "default", "max_connections") == 3
        before = await lab.stats("n1")
        await lab.publish(plan_of(lab, more=("e1",)))
        assert await limit(lab, "default", "max_connections") == 6
        assert await limit(lab, "default", "max_pending_requests") == 6 * 5
        assert await limit(lab, "high", "max_requests") == 2
        after = await lab.stats("n1")
        assert after["runtime.load_success"] == before["runtime.load_success"] + 1
        for counter in ("cluster_modified", "cluster_removed"):
            name = f"cluster_manager.{counter}"
            assert after.get(name, 0) == before.get(name, 0)
        assert (
            after["listener_manager.lds.update_success"]
            == before["listener_manager.lds.update_success"]
        )


@pytest.mark.parametrize(("balance", "ramps"), [("latency", True), ("proportional", False)])
async def test_a_new_engine_grows_to_its_share_unless_the_share_is_to_be_exact(lab, balance, ramps):
    policy = f"defaults: {{balance: {balance}, slow_start: 4s}}"
    lab.store.publish(plan_of(lab, seqs="64", policy=policy))
    async with (
        lab.engine("e0"),
        lab.engine("e1"),
        lab.envoy("node", "n1"),
        lab.envoy("edge", "edge-1"),
        aiohttp.ClientSession() as session,
    ):
        await asyncio.sleep(4.5)  # the first engine has grown already
        await lab.publish(plan_of(lab, seqs="64", policy=policy, more=("e1",)))
        admin = lab.admin("n1")
        async with asyncio.timeout(5):
            while not await asyncio.to_thread(_all_healthy, admin, 2):  # noqa: ASYNC110 no bell
                await asyncio.sleep(0.05)
        for _ in range(100):
            assert (await post(session, lab))[0] == 200
        counts = await asyncio.to_thread(admin.requests_by_host, CLUSTER)
        if ramps:
            assert counts[lab.socket("e1")] < 20
        else:
            assert 40 <= counts[lab.socket("e1")] <= 60


def _all_healthy(admin, count):
    hosts = admin.hosts(CLUSTER).values()
    return len(hosts) == count and not any(
        host["health_status"].get("failed_active_health_check") for host in hosts
    )


async def limit(lab, priority, field):
    text = await asyncio.to_thread(lab.admin("n1").get, "/clusters")
    line = next(
        line
        for line in text.splitlines()
        if line.startswith(f"{CLUSTER}::{priority}_priority::{field}::")
    )
    return int(line.rpartition("::")[2])

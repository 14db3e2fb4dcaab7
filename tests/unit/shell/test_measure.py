"""The meter: who is scraped, what a failure means, and when anybody hears of it."""

import asyncio
from collections.abc import Mapping

import aiohttp
import pytest
from aiohttp import web

from control_plane.measure import Meter, ScrapeError, scrape_through_nodes
from control_plane.metrics import Metrics
from control_plane.observations import MAX_SCRAPE_BYTES
from control_plane.plan import EnginePlan, NodePlan, Plan
from control_plane.planner import plan_fleet
from control_plane.policy import parse_policy
from control_plane.posterior import Posterior
from tests.support.builders import make_fleet
from tests.support.consul_json import consul_entry
from tests.support.ports import free_ports


class Plane:
    """What is measured: engines of equal declaration, and the corrections that were told."""

    def __init__(self, *entries, policy=b"{}") -> None:
        self.metrics = Metrics()
        self.told: list[Mapping[tuple[str, str], float]] = []
        self.policy = parse_policy(policy, source="policy.yaml")
        self.show(*entries)

    def show(self, *entries) -> None:
        self.fleet = make_fleet(*entries)
        self.plan: Plan | None = plan_fleet(self.fleet, self.policy, 0.0)

    def take_corrections(self, corrections) -> None:
        self.told.append(corrections)

    def scrapes(self, result: str) -> float:
        value = self.metrics.registry.get_sample_value(
            "wattmesh_capacity_scrapes_total", {"result": result}
        )
        return value or 0.0


class Engines:
    """Engines that made so many tokens, each so much slower than a card of power 100 would be."""

    def __init__(self, **gap_s: float) -> None:
        self.gap_s = gap_s
        self.seen: list[str] = []
        self._tokens = 0.0

    async def scrape(self, node: NodePlan, engine: EnginePlan) -> bytes:
        self.seen.append(engine.id)
        gap_s = self.gap_s[engine.engine]
        if gap_s < 0:
            raise ScrapeError("refused")
        self._tokens += 1000
        total = self._tokens * gap_s
        return (
            f"vllm:generation_tokens_total {self._tokens}\n"
            f"vllm:inter_token_latency_seconds_sum {total}\n"
            f"vllm:inter_token_latency_seconds_count {self._tokens}\n"
        ).encode()


def entry(name, **more):
    return consul_entry(f"n1.{name}", socket=f"/run/{name}.sock", **more)


async def rounds(meter, count):
    for _ in range(count):
        await meter.measure_once()


FAST = 0.6  # seconds: longer than the shortest window that counts


async def test_a_slow_engine_is_told_once_it_is_sure():
    plane = Plane(entry("a"), entry("b"), entry("c"))
    engines = Engines(a=0.008, b=0.008, c=0.016)
    meter = Meter(plane, engines.scrape, min_interval_s=FAST)
    await rounds(meter, 2)
    assert plane.told == []
    await rounds(meter, 2)
    ((engine_id, _), factor) = next(iter(plane.told[-1].items()))
    assert engine_id == "n1.c"
    assert factor < 0.85  # how much less depends on how long the rounds took here
    assert plane.scrapes("read") == 12
    told = len(plane.told)
    await rounds(meter, 1)
    assert len(plane.told) - told <= 1  # and no news without a change


async def test_only_ready_engines_of_models_that_are_corrected_are_scraped():
    plane = Plane(
        entry("a"),
        entry("b", state="warming"),
        entry("c", status="critical"),
        entry("d", model="acme/exact"),
        policy=b"models: {acme/exact: {balance: proportional}}",
    )
    engines = Engines(a=0.01)
    await rounds(Meter(plane, engines.scrape, min_interval_s=0.01), 1)
    assert engines.seen == ["n1.a"]


async def test_proportional_is_corrected_where_it_is_asked_for():
    policy = b"defaults: {balance: proportional, correction: {enabled: true}}"
    plane = Plane(entry("a"), policy=policy)
    engines = Engines(a=0.01)
    await rounds(Meter(plane, engines.scrape, min_interval_s=0.01), 1)
    assert engines.seen == ["n1.a"]


async def test_an_engine_that_cannot_be_scraped_is_unknown_and_the_others_go_on():
    plane = Plane(entry("a"), entry("b"))
    engines = Engines(a=0.01, b=-1)
    meter = Meter(plane, engines.scrape, min_interval_s=FAST)
    await rounds(meter, 2)
    assert meter.posteriors["n1.a"].samples == 1
    assert meter.posteriors["n1.b"].reason == "its metrics cannot be read: refused"
    assert (plane.scrapes("read"), plane.scrapes("failed")) == (2, 2)


async def test_an_engine_that_is_gone_is_forgotten_and_one_that_pauses_is_not():
    plane = Plane(entry("a"), entry("b"))
    meter = Meter(plane, Engines(a=0.01, b=0.01).scrape, min_interval_s=0.01)
    await rounds(meter, 1)
    plane.show(entry("a", status="critical"), entry("c"))
    meter_scrape = Engines(a=0.01, c=0.01)
    meter._scrape = meter_scrape.scrape
    await rounds(meter, 1)
    assert sorted(meter.posteriors) == ["n1.a", "n1.c"]


async def test_before_there_is_a_plan_nothing_is_measured():
    plane = Plane(entry("a"))
    plane.plan = None
    meter = Meter(plane, Engines().scrape)
    await asyncio.wait_for(meter.measure_once(), 5)
    assert meter.posteriors == {}


class Kept:
    """A store that keeps what it is given."""

    def __init__(self, kept=None) -> None:
        self.kept: dict[str, Posterior] = dict(kept or {})
        self.saves = 0

    async def load(self) -> dict[str, Posterior]:
        return dict(self.kept)

    async def save(self, posteriors) -> dict[str, Posterior]:
        self.saves += 1
        self.kept = dict(posteriors)
        return {}


async def run_for(meter, seconds):
    task = asyncio.create_task(meter.run())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def known(plane, engine_id, correction):
    """Return what is kept of an engine of the plane."""
    (declared,) = [
        engine.declaration
        for node in plane.fleet.nodes
        for engine in node.engines
        if engine.id == engine_id
    ]
    return Posterior(fingerprint=declared, log_ratio=correction, samples=9, correction=correction)


async def test_a_follower_measures_nothing_and_takes_what_the_leader_learnt():
    plane = Plane(entry("a"), entry("b"))
    engines, store = Engines(a=0.01, b=0.01), Kept({"n1.a": known(plane, "n1.a", -0.7)})
    leading = [False]
    meter = Meter(plane, engines.scrape, store=store, leads=lambda: leading[0], min_interval_s=0.05)
    await run_for(meter, 0.3)
    assert (engines.seen, store.saves) == ([], 0)
    ((key, factor),) = plane.told[-1].items()
    assert (key[0], factor) == ("n1.a", pytest.approx(0.4966, abs=1e-3))
    leading[0] = True
    await run_for(meter, 0.3)
    assert set(engines.seen) == {"n1.a", "n1.b"}
    assert store.saves >= 1


async def test_an_emptied_store_is_no_proof_against_what_is_known():
    plane = Plane(entry("a"), entry("b"))
    store = Kept({"n1.a": known(plane, "n1.a", -0.7)})
    meter = Meter(plane, Engines().scrape, store=store, leads=lambda: False, min_interval_s=0.05)
    await run_for(meter, 0.2)
    store.kept = {}
    await run_for(meter, 0.2)
    assert len(plane.told) == 1
    assert meter.posteriors["n1.a"].correction == -0.7


async def test_a_leader_keeps_the_belief_that_rests_on_more():
    plane = Plane(entry("a"), entry("b"))
    store = Kept({"n1.a": known(plane, "n1.a", -0.7), "gone.x": Posterior(fingerprint="f")})
    meter = Meter(plane, Engines(a=0.01, b=0.01).scrape, store=store, min_interval_s=0.05)
    await run_for(meter, 0.2)
    assert meter.posteriors["n1.a"].correction == -0.7
    assert "gone.x" not in meter.posteriors


@pytest.fixture
async def node():
    """Serve what a node's mesh listener does with metrics."""
    answers = {
        "/wattmesh/engines/good/metrics": web.Response(text="vllm:num_requests_running 1\n"),
        "/wattmesh/engines/large/metrics": web.Response(body=b"#" * (MAX_SCRAPE_BYTES + 1)),
    }

    async def answer(request):
        return answers.get(request.path, web.Response(status=503))

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    (port,) = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield port
    await runner.cleanup()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("good", None), ("large", "more than"), ("full", "HTTP 503"), ("gone", "Cannot connect")],
)
async def test_scraping_through_the_nodes_listener(node, name, reason):
    port = node if name != "gone" else free_ports(1)[0]
    plan = plan_fleet(
        make_fleet(consul_entry(f"n1.{name}", port=port)), Plane(entry("a")).policy, 0.0
    )
    async with aiohttp.ClientSession() as session:
        scraping = scrape_through_nodes(session)(plan.nodes[0], plan.nodes[0].engines[0])
        if reason is None:
            assert await scraping == b"vllm:num_requests_running 1\n"
        else:
            with pytest.raises(ScrapeError, match=reason):
                await scraping

"""A strong node whose engine is gone, seen by an edge that no control plane tells of it."""

import asyncio
import contextlib

import httpx
import pytest

from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry
from tests.support.envoy_lab import chat, running_lab
from tests.support.eventually import eventually
from tests.support.load import Load
from tests.support.ports import free_ports

pytestmark = pytest.mark.envoy
CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
POOL = "acme_2Ffox"


def plan_of(lab, weak_port):
    """Return a strong and a weak node, whose weights are some ten thousand to one."""
    return make_plan(
        consul_entry("strong.e1", port=lab.node_port, socket=lab.socket("e1"), gpu_power="220"),
        consul_entry("weak.e2", port=weak_port, socket=lab.socket("e2"), gpu_power="20"),
    )


@contextlib.asynccontextmanager
async def two_nodes(root):
    async with running_lab(root) as lab, contextlib.AsyncExitStack() as stack:
        (weak_port,) = free_ports(1)
        lab.store.publish(plan_of(lab, weak_port))
        for envoy in (("node", "strong"), ("node", "weak"), ("edge", "edge-1")):
            await stack.enter_async_context(lab.envoy(*envoy))
        yield lab


def steady(lab):
    body = {"model": "acme/fox", "stream": False}
    return Load(f"{lab.url}{CHAT}", body, rate_per_s=50)


async def served(lab, node):
    """Return how many requests a node's Envoy took so far."""
    return (await lab.stats(node))["http.mesh.downstream_rq_total"]


async def healthy(lab, node):
    """Wait until a node's own health checks have found its engine."""
    gauge = f"cluster.{POOL}.membership_healthy"
    async with asyncio.timeout(10):
        while (await lab.stats(node))[gauge] != 1:  # noqa: ASYNC110 Envoy rings no bell
            await asyncio.sleep(0.05)


async def test_a_dead_engine_of_the_strong_node_costs_no_request(short_tmp_path):
    async with two_nodes(short_tmp_path) as lab, lab.engine("e2"):
        async with lab.engine("e1"):
            await healthy(lab, "strong")
            await healthy(lab, "weak")
            async with steady(lab) as load:
                await answered(load, 50)
            assert load.failures() == []
        async with steady(lab) as load:  # the engine has just gone, and nobody says so
            await answered(load, 250)
        assert load.failures() == []
        stats = await lab.stats("edge-1")
        assert stats[f"cluster.{POOL}.outlier_detection.ejections_enforced_consecutive_5xx"] >= 1
        async with lab.engine("e1"):
            await healthy(lab, "strong")
            before = await served(lab, "strong")
            async with steady(lab) as load:
                async with asyncio.timeout(10):
                    while await served(lab, "strong") < before + 20:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
            assert load.failures() == []


async def test_no_engine_anywhere_is_said_once_and_in_our_words(short_tmp_path):
    async with two_nodes(short_tmp_path) as lab:
        await asyncio.sleep(0)
        async with httpx.AsyncClient(base_url=lab.url, timeout=10) as client:
            for _ in range(20):
                answer = await client.post(CHAT, content=chat(), headers=JSON)
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] in ("no_engine_available", "unavailable")
                assert int(answer.headers["retry-after"]) >= 1
                assert "x-wattmesh-no-engine" not in answer.headers


async def answered(load, count):
    goal = len(load.outcomes) + count
    await eventually(lambda: len(load.outcomes) >= goal, within_s=20)

"""Real edges: a limit of the fleet holds over all of them, whoever comes and goes."""

import asyncio
import contextlib
from dataclasses import replace

import aiohttp
import pytest

from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry
from tests.support.envoy_lab import chat, running_lab
from tests.support.ports import free_ports

pytestmark = [pytest.mark.envoy, pytest.mark.case("H1")]
POLICY = """
models:
  acme/fox: {request_limit: {rate: 10/m, burst: 12}}
  acme/owl: {request_limit: {rate: 10/m, burst: 8}}
"""


def plan_of(lab, *edges):
    plan = make_plan(
        consul_entry("n1.e0", port=lab.node_port, socket=lab.socket("e0")),
        consul_entry("n1.e1", port=lab.node_port, socket=lab.socket("e1"), model="acme/owl"),
        consul_entry("n1.e2", port=lab.node_port, socket=lab.socket("e2"), model="acme/elk"),
        policy=POLICY,
    )
    return replace(plan, edges=tuple(edges))


@pytest.fixture
async def lab(short_tmp_path):
    async with running_lab(short_tmp_path) as lab, contextlib.AsyncExitStack() as stack:
        for name in ("e0", "e1", "e2"):
            await stack.enter_async_context(lab.engine(name))
        yield lab


async def send(session, port, model="acme/fox", headers=()):
    async with session.post(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=chat(model),
        headers={"content-type": "application/json", **dict(headers)},
    ) as response:
        return response.status, await response.json(), response.headers


async def test_h1_four_edges_let_one_limit_pass_between_them(lab):
    names, ports = [f"edge-{i}" for i in range(4)], free_ports(4)
    lab.store.publish(plan_of(lab, *names))
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(lab.envoy("node", "n1"))
        for name, port in zip(names, ports, strict=True):
            await stack.enter_async_context(lab.envoy("edge", name, port=port))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        answers = await asyncio.gather(*(send(session, ports[i % 4]) for i in range(100)))
        statuses = [status for status, *_ in answers]
        assert 8 <= statuses.count(200) <= 13  # 12, and what seconds of a slow machine add
        assert statuses.count(200) + statuses.count(429) == 100
        # another model has a bucket of its own, and one without a limit none
        assert (await send(session, ports[0], "acme/owl"))[0] == 200
        elk = [(await send(session, ports[0], "acme/elk"))[0] for _ in range(30)]
        assert elk == [200] * 30


async def test_h1_an_edge_that_leaves_gives_its_share_to_the_others(lab):
    lab.store.publish(plan_of(lab, "edge-1", "edge-2"))
    async with (
        lab.envoy("node", "n1"),
        lab.envoy("edge", "edge-1"),
        aiohttp.ClientSession() as session,
    ):
        before = [(await send(session, lab.edge_port))[0] for _ in range(10)]
        assert before.count(200) in (6, 7)
        await lab.publish(plan_of(lab, "edge-1"))
        after = [(await send(session, lab.edge_port, "acme/owl"))[0] for _ in range(12)]
        assert after.count(200) in (8, 9)


async def test_what_a_caller_over_the_limit_is_told(lab):
    lab.store.publish(plan_of(lab, "edge-1"))
    async with (
        lab.envoy("node", "n1"),
        lab.envoy("edge", "edge-1"),
        aiohttp.ClientSession() as session,
    ):
        by_header = [("x-wattmesh-model", "acme/owl")]  # the same bucket as by the body
        answers = [
            await send(session, lab.edge_port, "acme/owl", by_header if i % 2 else ())
            for i in range(12)
        ]
        status, body, headers = answers[-1]
        assert status == 429
        assert body["error"]["code"] == "rate_limit_exceeded"
        assert int(headers["retry-after"]) >= 1
        assert headers["x-ratelimit-limit"] == "8"
        async with session.get(f"{lab.url}/v1/models") as response:
            assert response.status == 200  # only models are limited


@pytest.mark.parametrize("model", ["xds", "control_plane", "local_edges", "edges", "edge"])
async def test_a_model_may_be_named_like_a_part_of_ours(lab, model):
    plan = make_plan(
        consul_entry("n1.e0", port=lab.node_port, socket=lab.socket("e0"), model=model)
    )
    lab.store.publish(plan)
    async with (
        lab.envoy("node", "n1"),
        lab.envoy("edge", "edge-1"),
        aiohttp.ClientSession() as session,
    ):
        assert (await send(session, lab.edge_port, model))[0] == 200

"""Real Envoys say no: everyone keeps what was good, all else moves on, the fix goes out at once."""

import asyncio
import contextlib

import aiohttp
import pytest

from control_plane.resources import build_resources
from control_plane.snapshot import make_snapshot
from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry
from tests.support.envoy_lab import chat, running_lab
from tests.support.eventually import eventually
from tests.support.ports import free_ports

pytestmark = [pytest.mark.envoy, pytest.mark.case("D5")]
BAD = "acme_2Ffox"


class Rendering:
    """Renders plans as the product does, and breaks a cluster in a way only Envoy notices."""

    def __init__(self):
        self.broken = False

    def __call__(self, plan, view):
        resources = build_resources(plan, view)
        for cluster in resources.clusters:
            if self.broken and view.role == "edge" and cluster.name == BAD:
                cluster.least_request_lb_config.choice_count.value = 1  # Envoy wants at least 2
        return make_snapshot(resources)


def plan_of(lab, retry_after, *models):
    return make_plan(
        *(
            consul_entry(f"n1.e{i}", port=lab.node_port, socket=lab.socket(f"e{i}"), model=model)
            for i, model in enumerate(models)
        ),
        policy=f"retry_after: {retry_after}s",
    )


async def ask(session, port, model):
    async with session.post(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        data=chat(model),
        headers={"content-type": "application/json"},
    ) as response:
        return response.status


async def test_d5_everyone_keeps_the_last_good_form_while_all_else_moves_on(short_tmp_path):
    rendering = Rendering()
    async with running_lab(short_tmp_path, rendering) as lab, contextlib.AsyncExitStack() as stack:
        for name in ("e0", "e1"):
            await stack.enter_async_context(lab.engine(name))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        lab.store.publish(plan_of(lab, 1, "acme/fox"))
        await stack.enter_async_context(lab.envoy("node", "n1"))
        await stack.enter_async_context(lab.envoy("edge", "edge-1"))
        assert await ask(session, lab.edge_port, "acme/fox") == 200

        rendering.broken = True
        lab.store.publish(plan_of(lab, 2, "acme/fox", "acme/owl"))
        await eventually(lambda: lab.store.quarantined, within_s=10)
        (refusal,) = lab.store.quarantined
        assert (refusal.name, refusal.node) == (BAD, "edge-1")
        assert "choice_count" in refusal.message.lower().replace("choicecount", "choice_count")
        await settled(lab)
        assert await ask(session, lab.edge_port, "acme/fox") == 200
        async with asyncio.timeout(10):  # the new model's engine passes its first health check
            while await ask(session, lab.edge_port, "acme/owl") != 200:  # noqa: ASYNC110 no bell
                await asyncio.sleep(0.05)

        (port,) = free_ports(1)  # an edge that starts now
        await stack.enter_async_context(lab.envoy("edge", "edge-2", port=port))
        assert await ask(session, port, "acme/fox") == 200
        rejected = (await lab.stats("edge-2")).get("cluster_manager.cds.update_rejected", 0)
        assert rejected == 0  # it was never shown the bad one

        rejected = (await lab.stats("edge-1"))["cluster_manager.cds.update_rejected"]
        lab.store.publish(plan_of(lab, 3, "acme/fox", "acme/owl"))
        await settled(lab)
        assert (await lab.stats("edge-1"))["cluster_manager.cds.update_rejected"] == rejected

        rendering.broken = False
        await lab.publish(plan_of(lab, 4, "acme/fox", "acme/owl"))
        await settled(lab)
        assert await ask(session, lab.edge_port, "acme/fox") == 200


async def settled(lab):
    """Wait until no Envoy waits for anything; one that refused something keeps its ERROR."""

    def quiet():
        kinds = [kind for stream in lab.service.status() for kind in stream.types]
        return all(kind.state in ("SYNCED", "ERROR") for kind in kinds)

    await asyncio.sleep(0.2)
    await eventually(quiet, within_s=10)

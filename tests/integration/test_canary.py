"""Real Envoys: a changed listener, cluster or route is tried by one before the others have it."""

import contextlib
import itertools

import pytest

from control_plane.resources import build_resources
from control_plane.snapshot import make_snapshot
from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry
from tests.support.envoy_lab import running_lab
from tests.support.eventually import eventually
from tests.support.ports import free_ports

pytestmark = [pytest.mark.envoy, pytest.mark.case("D5")]
NODES = ("n1", "n2")
REJECTED = "listener_manager.lds.update_rejected"
UPDATED = "listener_manager.lds.update_success"


class Rendering:
    """Renders plans as the product does, and breaks every listener as only Envoy notices."""

    def __init__(self):
        self.broken = False

    def __call__(self, plan, view):
        resources = build_resources(plan, view)
        for listener in resources.listeners:
            if self.broken:
                # Each listener has an address of its own, so that no two of them are equal.
                listener.filter_chains[0].filters[0].name = "no.such.filter"
                listener.filter_chains[0].filters[0].ClearField("typed_config")
        return make_snapshot(resources)


def plan_of(lab, ports, retry_after):
    entries = [
        consul_entry(f"{node}.e0", port=port, socket=lab.socket("e0"), model="acme/fox")
        for node, port in zip(NODES, ports, strict=True)
    ]
    return make_plan(*entries, policy=f"retry_after: {retry_after}s")


async def counters(lab, names):
    return {name: (await lab.stats(name)) for name in names}


@pytest.mark.parametrize("role", ["edge", "node"])
async def test_d5_a_bad_listener_is_refused_by_one_and_shown_to_no_other(short_tmp_path, role):
    rendering = Rendering()
    async with running_lab(short_tmp_path, rendering) as lab, contextlib.AsyncExitStack() as stack:
        ports = free_ports(4)
        await stack.enter_async_context(lab.engine("e0"))
        lab.store.publish(plan_of(lab, ports[:2], 1))
        for name in NODES:
            await stack.enter_async_context(lab.envoy("node", name))
        names = NODES
        if role == "edge":
            names = ("edge-1", "edge-2")
            for name, port in zip(names, ports[2:], strict=True):
                await stack.enter_async_context(lab.envoy("edge", name, port=port))
        before = await counters(lab, names)

        rendering.broken = True
        lab.store.publish(plan_of(lab, ports[:2], 2))
        await eventually(lambda: lab.store.quarantined, within_s=10)
        await eventually(lambda: not lab.store.held, within_s=10)
        after = await counters(lab, names)
        rejected = [after[name][REJECTED] - before[name][REJECTED] for name in names]
        assert sorted(rejected) == [0, 1]

        rendering.broken = False
        await lab.publish(plan_of(lab, ports[:2], 3))
        fixed = await counters(lab, names)
        assert all(fixed[name][UPDATED] > after[name][UPDATED] for name in names)
        assert [fixed[name][REJECTED] for name in names] == [after[n][REJECTED] for n in names]


async def test_a_good_change_is_held_for_no_longer_than_the_first_envoy_takes(short_tmp_path):
    async with running_lab(short_tmp_path) as lab, contextlib.AsyncExitStack() as stack:
        ports = free_ports(2)
        await stack.enter_async_context(lab.engine("e0"))
        lab.store.publish(plan_of(lab, ports, 1))
        for name in NODES:
            await stack.enter_async_context(lab.envoy("node", name))
        for retry_after in itertools.islice(itertools.count(2), 5):
            await lab.publish(plan_of(lab, ports, retry_after))
        released = lab.metrics.registry.get_sample_value(
            "wattmesh_xds_canary_releases_total", {"reason": "acknowledged"}
        )
        assert released == 5

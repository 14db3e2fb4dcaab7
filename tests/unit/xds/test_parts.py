"""What a view depends on: equal parts mean equal resources, and a change touches few views."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.metrics import Metrics
from control_plane.rendering import Renderer
from control_plane.resources import PlanParts, View, build_resources
from control_plane.snapshot import make_snapshot
from control_plane.store import SnapshotStore
from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry

EDGE = View(role="edge", listen_address="127.0.0.1", listen_port=10000)
VIEWS = [EDGE, *(View(role="node", node_id=f"n{i}") for i in range(3))]


def plan_of(policy="{}", **changed):
    entries = [
        consul_entry(
            f"n{i}.e{j}",
            port=9000 + i,
            socket=f"/run/e{j}.sock",
            model=f"acme/m{j}",
            gpu_power="100",
        )
        for i in range(2)
        for j in range(2)
    ]
    entries[0]["Service"]["Meta"].update(changed)
    return make_plan(*entries, policy=policy)


PLANS = [
    plan_of(),
    plan_of(gpu_power="150"),
    plan_of(state="draining"),
    plan_of(max_num_seqs="4"),
    plan_of(keep_alive_s="9"),
    plan_of(model="acme/other"),
    plan_of("defaults: {balance: proportional}"),
    plan_of("defaults: {max_queue: 1}"),
    plan_of("defaults: {slow_start: 1s}"),
    plan_of("defaults: {generation_timeout: 5s}"),
    plan_of("{max_request_size: 1MiB, retry_after: 9s}"),
    plan_of("defaults: {request_limit: {rate: 1/s}}"),
    replace(plan_of("request_limit: {rate: 1/s}"), edges=("edge-1",)),
    make_plan(),
]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.node_id or "edge")
def test_equal_parts_mean_equal_resources(view):
    parts = PlanParts()
    built = [(parts(plan, view), build_resources(plan, view)) for plan in PLANS]
    for (part, resources), (other_part, other_resources) in itertools.combinations(built, 2):
        if part == other_part:
            assert resources == other_resources


def test_one_engines_power_renders_its_node_and_the_edges():
    parts = PlanParts()
    changed = {
        view.node_id or "edge" for view in VIEWS if parts(PLANS[0], view) != parts(PLANS[1], view)
    }
    assert changed == {"edge", "n0"}


@settings(max_examples=40)
@given(st.lists(st.sampled_from(PLANS), min_size=1, max_size=6))
def test_a_store_with_parts_serves_what_a_fresh_one_does(plans):
    renderer = Renderer()
    store = SnapshotStore(renderer.render, Metrics(), renderer.part, renderer.drop)
    for plan in plans:
        store.publish(plan)
        for view in VIEWS:
            assert store.snapshot(view) == make_snapshot(build_resources(plan, view))


def test_a_view_is_rendered_once_for_equal_parts():
    rendered = []

    def render(plan, view):
        rendered.append(view)
        return make_snapshot(build_resources(plan, view))

    store = SnapshotStore(render, Metrics(), PlanParts())
    for plan in (PLANS[0], PLANS[1], PLANS[0]):
        store.publish(plan)
        for view in VIEWS:
            store.snapshot(view)
    assert [rendered.count(view) for view in VIEWS] == [3, 3, 1, 1]

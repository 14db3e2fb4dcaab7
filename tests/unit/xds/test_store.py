"""The store: one rendering per view and plan, and the last good one where ours are refused."""

import pytest

from control_plane.errors import PayloadError
from control_plane.metrics import Metrics
from control_plane.plan import Plan
from control_plane.resources import View
from control_plane.snapshot import Snapshot
from control_plane.store import SnapshotStore

EDGE = View(role="edge", listen_address="127.0.0.1", listen_port=10000)
NODE = View(role="node", node_id="n1")


class Renderer:
    """Renders nothing, counts, and refuses on demand."""

    def __init__(self):
        self.calls = []
        self.refuse = set()

    def __call__(self, plan, view):
        self.calls.append(view)
        if view in self.refuse:
            raise PayloadError(["weight is 0"])
        return Snapshot({}, {"plan": str(plan.max_request_bytes)})


@pytest.fixture
def renderer():
    return Renderer()


@pytest.fixture
def store(renderer):
    return SnapshotStore(renderer, Metrics())


def plan(number):
    return Plan(max_request_bytes=number)


async def test_nothing_is_served_before_the_first_plan(store, renderer):
    assert store.snapshot(EDGE) is None
    assert renderer.calls == []


async def test_a_view_is_rendered_once_per_plan(store, renderer):
    store.publish(plan(1))
    assert store.snapshot(EDGE) is store.snapshot(EDGE)
    store.snapshot(NODE)
    assert renderer.calls == [EDGE, NODE]
    store.publish(plan(2))
    assert store.snapshot(EDGE).eds_names["plan"] == "2"


async def test_an_equal_plan_wakes_nobody(store):
    store.publish(plan(1))
    bell = store.bell()
    store.publish(plan(1))
    assert not bell.is_set()
    store.publish(plan(2))
    assert bell.is_set()
    assert not store.bell().is_set()


async def test_a_refused_view_keeps_its_last_good_snapshot_and_the_others_move_on(store, renderer):
    store.publish(plan(1))
    store.snapshot(EDGE), store.snapshot(NODE)
    renderer.refuse = {EDGE}
    store.publish(plan(2))
    assert store.snapshot(EDGE).eds_names["plan"] == "1"
    assert store.snapshot(NODE).eds_names["plan"] == "2"
    assert store.refused == {EDGE: ("weight is 0",)}
    store.snapshot(EDGE)
    assert renderer.calls.count(EDGE) == 2  # refused once, not at every look
    renderer.refuse = set()
    store.publish(plan(3))
    assert store.snapshot(EDGE).eds_names["plan"] == "3"
    assert store.refused == {}


async def test_a_view_that_was_never_good_is_served_nothing(store, renderer):
    renderer.refuse = {EDGE}
    store.publish(plan(1))
    assert store.snapshot(EDGE) is None


async def test_a_forgotten_view_leaves_nothing(store, renderer):
    store.publish(plan(1))
    store.snapshot(EDGE)
    store.forget(EDGE)
    store.snapshot(EDGE)
    assert renderer.calls == [EDGE, EDGE]

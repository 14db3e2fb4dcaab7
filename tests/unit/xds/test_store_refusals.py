"""A refused view over many plans and reconnects: served the last good, told of once, bounded."""

import pytest
import structlog

from control_plane.errors import PayloadError
from control_plane.metrics import Metrics
from control_plane.plan import Plan
from control_plane.resources import View
from control_plane.snapshot import Snapshot
from control_plane.store import SnapshotStore


def view(number):
    return View(role="node", node_id=f"n{number}")


class Refusing:
    """Renders a plan's size, and refuses with the violations it is given."""

    def __init__(self):
        self.violations = ()

    def __call__(self, plan, _view):
        if self.violations:
            raise PayloadError(self.violations)
        return Snapshot({}, {"plan": str(plan.max_request_bytes)})


@pytest.fixture
def render():
    return Refusing()


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def store(render, metrics):
    return SnapshotStore(render, metrics)


def publish(store, number, *views):
    store.publish(Plan(max_request_bytes=number))
    return [store.snapshot(view) for view in views]


async def test_the_last_good_snapshot_outlives_a_reconnect(store, render):
    publish(store, 1, view(1))
    render.violations = ("weight is 0",)
    publish(store, 2, view(1))
    store.forget(view(1))  # its Envoy restarts
    assert store.snapshot(view(1)).eds_names["plan"] == "1"
    store.forget(view(1))
    (snapshot,) = publish(store, 3, view(1))
    assert snapshot.eds_names["plan"] == "1"


async def test_departed_views_are_kept_in_a_bounded_number(store, render):
    many = [view(number) for number in range(300)]
    publish(store, 1, *many)
    render.violations = ("weight is 0",)
    publish(store, 2, *many)
    for each in many:
        store.forget(each)
    kept = [each for each in many if store.snapshot(each) is not None]
    assert kept == many[-256:]  # those that left last


async def test_a_refusal_is_logged_when_it_changes_and_counted_with_every_plan(
    store, render, metrics
):
    with structlog.testing.capture_logs() as logs:
        publish(store, 1, view(1))
        render.violations = ("weight is 0",)
        publish(store, 2, view(1))
        publish(store, 3, view(1))
        render.violations = ("weight is 0", "name is empty")
        publish(store, 4, view(1))
        render.violations = ()
        publish(store, 5, view(1))
        publish(store, 6, view(1))
    assert [(entry["log_level"], entry.get("count")) for entry in logs] == [
        ("error", 1),
        ("error", 2),
        ("info", None),
    ]
    labels = {"role": "node"}
    assert metrics.registry.get_sample_value("wattmesh_payload_refused_total", labels) == 3

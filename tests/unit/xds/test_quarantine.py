"""What one Envoy refused: sent to nobody, replaced by what was taken last, lifted by a fix."""

import pytest
from google.protobuf import any_pb2

from control_plane.metrics import Metrics
from control_plane.plan import Plan
from control_plane.quarantine import Quarantine
from control_plane.resources import View
from control_plane.snapshot import CLUSTER, LISTENER, Snapshot, VersionedResource
from control_plane.store import SnapshotStore
from control_plane.stream import Nacked

EDGE = View(role="edge", listen_address="127.0.0.1", listen_port=10000)
NODE = View(role="node", node_id="n1")
conformance = pytest.mark.conformance


def resource(name, version, type_url=CLUSTER):
    return VersionedResource(name, version, any_pb2.Any(type_url=type_url))


def snapshot(type_url=CLUSTER, **versions):
    resources = {name: resource(name, v, type_url) for name, v in versions.items()}
    return Snapshot({type_url: resources}, {})


def nacked(*versions, certain=True, message="cluster: no good", type_url=CLUSTER):
    return Nacked(type_url, "n1", versions, message, certain)


class Served:
    """A quarantine and what a view is served of a snapshot."""

    def __init__(self, view=EDGE):
        self.quarantine = Quarantine()
        self.view = view

    def takes(self, **versions):
        taken = [resource(name, version) for name, version in versions.items()]
        return self.quarantine.note_acked(self.view, CLUSTER, taken)

    def refuses(self, *versions, **more):
        return self.quarantine.note_refused(self.view, nacked(*versions, **more), node="e1", at_s=5)

    def of(self, **versions):
        served = self.quarantine.serve(self.view, snapshot(**versions))
        return {name: item.version for name, item in served.of_type(CLUSTER).items()}


@conformance("8")
@pytest.mark.case("D5")
def test_8_d5_the_last_acknowledged_form_is_served_and_the_others_move_on():
    served = Served()
    served.takes(A="v1", B="v1")
    (refusal,) = served.refuses(("A", "v2"))
    assert (refusal.name, refusal.version, refusal.node, refusal.refused_at) == ("A", "v2", "e1", 5)
    assert served.of(A="v2", B="v2", C="v1") == {"A": "v1", "B": "v2", "C": "v1"}


@conformance("9")
def test_9_the_fix_is_served_at_once():
    served = Served()
    served.takes(A="v1")
    served.refuses(("A", "v2"))
    assert served.of(A="v3") == {"A": "v3"}


def test_a_new_resource_that_is_refused_is_served_to_nobody():
    served = Served()
    served.takes(A="v1")
    served.refuses(("B", "v1"))
    assert served.of(A="v1", B="v1") == {"A": "v1"}


def test_before_anything_was_taken_there_is_nothing_better_to_serve():
    served = Served()
    served.refuses(("A", "v1"))
    assert served.of(A="v1") == {"A": "v1"}
    assert [item.name for item in served.quarantine.refusals] == ["A"]


def test_what_another_envoy_took_is_good():
    served = Served()
    served.takes(A="v1")
    served.takes(A="v2")
    assert served.refuses(("A", "v2")) == ()
    assert served.of(A="v2") == {"A": "v2"}


def test_what_an_envoy_takes_after_all_is_lifted():
    served = Served()
    served.takes(A="v1")
    served.refuses(("A", "v2"))
    assert [item.version for item in served.takes(A="v2")] == ["v2"]
    assert served.of(A="v2") == {"A": "v2"}
    assert served.quarantine.refusals == ()


@pytest.mark.parametrize(
    ("version", "cleared"),
    [("v2", ["A"]), ("v9", ["B"]), (None, ["A", "B"]), ("unknown", [])],
)
def test_what_is_cleared_is_served_again(version, cleared):
    served = Served()
    served.takes(A="v1", B="v1")
    served.refuses(("A", "v2"))
    served.refuses(("B", "v9"))
    assert [item.name for item in served.quarantine.clear(version)] == cleared
    offered = served.of(A="v2", B="v9")
    assert [name for name in offered if offered[name] != "v1"] == cleared
    assert len(served.quarantine.refusals) == 2 - len(cleared)


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"certain": False}, id="nobody knows which of many it was"),
        pytest.param({"message": "edge: cannot bind '0.0.0.0:80'"}, id="a port that is taken"),
    ],
)
def test_a_fault_that_may_be_the_envoys_own_concerns_nobody_else(more):
    served = Served()
    served.takes(A="v1")
    assert served.refuses(("A", "v2"), **more) == ()
    assert served.of(A="v2") == {"A": "v2"}


def test_a_view_is_not_touched_by_anothers_refusal():
    served = Served()
    served.takes(A="v1")
    served.refuses(("A", "v2"))
    other = served.quarantine.serve(NODE, snapshot(A="v2"))
    assert other.of_type(CLUSTER)["A"].version == "v2"


def test_other_types_of_the_same_name_are_not_touched():
    served = Served()
    served.takes(A="v1")
    served.refuses(("A", "v2"))
    kept = served.quarantine.serve(EDGE, snapshot(LISTENER, A="v2"))
    assert kept.of_type(LISTENER)["A"].version == "v2"


def test_a_departed_view_is_forgotten_unless_something_stands_in():
    served = Served()
    served.takes(A="v1")
    served.quarantine.forget(EDGE)
    served.refuses(("A", "v2"))
    assert served.of(A="v2") == {"A": "v2"}  # nothing is known to be better
    served.takes(A="v1")
    served.quarantine.forget(EDGE)
    assert served.of(A="v2") == {"A": "v1"}


async def test_the_store_rings_and_counts():
    store = SnapshotStore(lambda plan, _view: snapshot(A=str(plan.max_request_bytes)), Metrics())
    store.publish(Plan(max_request_bytes=1))
    first = store.snapshot(EDGE).of_type(CLUSTER)["A"]
    store.note_acked(EDGE, CLUSTER, [first])
    store.publish(Plan(max_request_bytes=2))
    assert store.snapshot(EDGE).of_type(CLUSTER)["A"].version == "2"
    bell = store.bell()
    store.note_refused(EDGE, nacked(("A", "2")), node="e1", at_s=0.0)
    assert bell.is_set()
    assert store.snapshot(EDGE).of_type(CLUSTER)["A"] == first
    assert [item.version for item in store.quarantined] == ["2"]
    store.publish(Plan(max_request_bytes=3))
    assert store.snapshot(EDGE).of_type(CLUSTER)["A"].version == "3"

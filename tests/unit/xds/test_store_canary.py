"""The store with its gate: what is logged, counted and woken, and what a canary's refusal does."""

import pytest
import structlog
from google.protobuf import any_pb2

from control_plane.canary import BOUND_S
from control_plane.canary_wave import Envoy
from control_plane.metrics import Metrics
from control_plane.plan import Plan
from control_plane.resources import View
from control_plane.snapshot import CLUSTER, LISTENER, Snapshot, VersionedResource
from control_plane.store import SnapshotStore
from control_plane.stream import Nacked

NODES = {f"n{number}": View(role="node", node_id=f"n{number}") for number in range(4)}


class Served:
    """Nodes whose listeners have one name and, as ours, a content of their own each."""

    def __init__(self):
        self.now = 100.0
        self.metrics = Metrics()
        self.store = SnapshotStore(self._render, self.metrics, clock=lambda: self.now)
        self.store.envoys = self._envoys
        self.connected = set(NODES)
        self.publish(1)
        self.listeners()

    def _render(self, plan, view):
        version = f"{view.node_id}-{plan.max_request_bytes}"
        resources = {
            url: {"mesh": VersionedResource("mesh", version, any_pb2.Any(type_url=url))}
            for url in (CLUSTER, LISTENER)
        }
        return Snapshot(resources, {})

    def _envoys(self, role):
        return [Envoy(name, NODES[name], True) for name in sorted(self.connected) if role == "node"]

    def publish(self, number):
        self.store.publish(Plan(max_request_bytes=number))

    def listeners(self, type_url=LISTENER):
        """Return which plan's content each node is served."""
        return {
            name: int(
                self.store.snapshot(view, name).of_type(type_url)["mesh"].version.partition("-")[2]
            )
            for name, view in NODES.items()
        }

    def canary(self):
        (found,) = [name for name in NODES if self.store.awaits(NODES[name], name)]
        return found

    def refuse(self, name, number, message="mesh: no such filter"):
        event = Nacked(LISTENER, "n", (("mesh", f"{name}-{number}"),), message, certain=True)
        self.store.note_refused(NODES[name], event, node=name, at_s=5.0)

    def count(self, name, **labels):
        return self.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
def served():
    return Served()


async def test_the_last_canary_wakes_everyone(served):
    served.publish(2)
    assert sorted(served.listeners().values()) == [1, 1, 1, 2]
    assert served.count("wattmesh_xds_canary_held", role="node") == 3
    canary, bell = served.canary(), served.store.bell()
    assert served.store.next_deadline(NODES["n0"]) == 100.0 + BOUND_S
    served.store.note_proven(NODES[canary], canary)
    assert bell.is_set()
    assert served.count("wattmesh_xds_canary_held", role="node") == 0
    assert set(served.listeners().values()) == {2}
    assert served.count("wattmesh_xds_canary_releases_total", reason="acknowledged") == 1


async def test_one_line_at_the_start_and_one_at_the_end(served):
    with structlog.testing.capture_logs() as logs:
        served.publish(2)
        served.listeners()
        canary = served.canary()
        served.now += 0.25
        served.store.note_proven(NODES[canary], canary)
        served.listeners()
    began, ended = logs
    assert began["event"] == "changed configuration goes to canaries first"
    assert (began["role"], began["canaries"]) == ("node", [canary])
    assert set(began["contents"]) == {"Cluster mesh", "Listener mesh"}
    assert ended["event"] == "changed configuration goes to everyone"
    assert (ended["log_level"], ended["reason"]) == ("info", "acknowledged")
    assert (ended["waiting"], ended["after_s"]) == (3, 0.25)


async def test_a_silent_canary_is_a_warning(served):
    with structlog.testing.capture_logs() as logs:
        served.publish(2)
        served.listeners()
        served.now += BOUND_S
        assert set(served.listeners().values()) == {2}
    assert [entry["log_level"] for entry in logs] == ["info", "warning"]
    assert served.count("wattmesh_xds_canary_releases_total", reason="no_answer_in_time") == 1


@pytest.mark.conformance("8")
@pytest.mark.case("D5")
async def test_8_d5_what_a_canary_refuses_its_mates_are_never_sent(served):
    served.publish(2)
    served.listeners()
    canary = served.canary()
    served.refuse(canary, 2)
    assert set(served.listeners().values()) == {1}
    assert set(served.listeners(CLUSTER).values()) == {1, 2}
    served.store.note_proven(NODES[canary], canary)  # it took the rest
    assert set(served.listeners().values()) == {1}
    assert set(served.listeners(CLUSTER).values()) == {2}
    assert {item.version for item in served.store.quarantined} == {f"{name}-2" for name in NODES}
    assert {item.node for item in served.store.quarantined} == {canary}
    assert served.count("wattmesh_xds_quarantined") == 4


async def test_a_fix_goes_to_a_canary_first_as_well(served):
    served.publish(2)
    served.listeners()
    canary = served.canary()
    served.refuse(canary, 2)
    served.listeners()
    served.store.note_proven(NODES[canary], canary)
    served.listeners()
    served.publish(3)
    assert sorted(served.listeners().values()) == [1, 1, 1, 3]
    assert served.listeners()[canary] == 3


async def test_a_fault_of_the_canarys_own_host_makes_another_one_try(served):
    served.publish(2)
    served.listeners()
    canary, bell = served.canary(), served.store.bell()
    served.connected.discard(canary)  # it refuses something
    served.refuse(canary, 2, message="mesh: cannot bind '0.0.0.0:80'")
    assert bell.is_set()
    assert served.store.quarantined == ()
    assert sorted(served.listeners().values()) == [1, 1, 2, 2]
    assert served.canary() != canary


async def test_what_waits_is_shown_with_the_time_of_day(served):
    served.publish(2)
    served.listeners()
    (hold,) = served.store.held
    assert hold.canaries == (served.canary(),)
    assert hold.since > 1_000_000_000


async def test_what_is_cleared_is_offered_to_a_canary_first(served):
    served.publish(2)
    served.listeners()
    canary = served.canary()
    served.refuse(canary, 2)
    served.listeners()
    told = []
    served.store.on_cleared = told.append
    bell = served.store.bell()
    assert {item.version for item in served.store.clear_quarantine(None)} == {
        f"{name}-2" for name in NODES
    }
    assert bell.is_set()
    assert told
    assert served.store.quarantined == ()
    assert sorted(served.listeners().values()) == [1, 1, 1, 2]
    assert served.count("wattmesh_xds_quarantined") == 0
    assert served.store.clear_quarantine("unknown") == ()

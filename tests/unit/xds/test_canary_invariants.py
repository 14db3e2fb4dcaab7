"""Whatever comes in whatever order: nobody is served an inconsistent set, nobody waits for ever.

Edges and nodes that come, go, take, refuse and fall silent, over a store whose worlds change.
"""

from google.protobuf import any_pb2
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from control_plane.canary import BOUND_S
from control_plane.canary_forms import GATED
from control_plane.canary_wave import Envoy
from control_plane.checks import check_set
from control_plane.metrics import Metrics
from control_plane.plan import Plan
from control_plane.resources import Resources, View
from control_plane.snapshot import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    ROUTE,
    RUNTIME,
    make_snapshot,
)
from control_plane.store import SnapshotStore
from control_plane.stream import Nacked
from tests.xds.blackbox import worlds

NAMES = ("A", "B", "C")
ENVOYS = {
    **{f"e{i}": View(role="edge", listen_address="::", listen_port=1 + i // 3) for i in range(6)},
    **{f"n{i}": View(role="node", node_id=f"n{i}") for i in range(4)},
}
# Of each pool: the version of its cluster, of its endpoints, and whether the routes lead to it.
POOLS = st.dictionaries(
    st.sampled_from(NAMES), st.tuples(st.integers(1, 2), st.integers(1, 3), st.booleans())
)


def build(pools, listener_version, view):
    """Return a consistent set; listeners differ by view as ours do."""
    routed = sorted(name for name, (_, _, is_routed) in pools.items() if is_routed)
    routes = [worlds.routes(f"to-{name}", to=name) for name in routed]
    address = 100 * view.listen_port + listener_version
    return Resources(
        clusters=tuple(worlds.cluster(name, v) for name, (v, _, _) in sorted(pools.items())),
        endpoints=tuple(worlds.endpoints(name, v) for name, (_, v, _) in sorted(pools.items())),
        listeners=tuple(
            worlds.listener(f"l-{name}", address, routes_name=f"to-{name}") for name in routed
        ),
        routes=tuple(routes),
    )


def served_resources(snapshot):
    """Return the messages of a snapshot."""

    def of(type_url):
        messages = []
        for item in snapshot.of_type(type_url).values():
            body = any_pb2.Any.FromString(item.body.SerializeToString())
            messages.append(worlds.messages(_Response([body]))[0])
        return tuple(messages)

    return Resources(
        clusters=of(CLUSTER),
        endpoints=of(ENDPOINT),
        listeners=of(LISTENER),
        routes=of(ROUTE),
        runtimes=of(RUNTIME),
        extensions=of(EXTENSION),
    )


class _Response:
    """As much of a response as `worlds.messages` reads."""

    def __init__(self, resources):
        self.resources = resources


class Fleet(RuleBasedStateMachine):
    """The Envoys of two roles, what each was served last, and a world that changes."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.pools = {}
        self.listener_version = 1
        self.plans = 0
        self.connected = {}
        self.refusing = set()
        self.changed_at = {}  # since when an Envoy lacks the newest
        self.store = SnapshotStore(self.render, Metrics(), clock=lambda: self.now)
        self.store.envoys = self.envoys
        self.change({}, 1)

    def render(self, _plan, view):
        return make_snapshot(build(self.pools, self.listener_version, view))

    def envoys(self, role):
        return [
            Envoy(name, ENVOYS[name], settled=True)
            for name, is_healthy in self.connected.items()
            if is_healthy and name not in self.refusing and ENVOYS[name].role == role
        ]

    def serve(self, name):
        return self.store.snapshot(ENVOYS[name], name)

    @rule(pools=POOLS, listener_version=st.integers(1, 2))
    def change(self, pools, listener_version):
        self.pools, self.listener_version = pools, listener_version
        self.plans += 1
        self.store.publish(Plan(max_request_bytes=self.plans))

    @rule(name=st.sampled_from(sorted(ENVOYS)), is_healthy=st.booleans())
    def connect(self, name, is_healthy):
        self.connected[name] = is_healthy or self.connected.get(name, False)

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def disconnect(self, data):
        name = data.draw(st.sampled_from(sorted(self.connected)))
        del self.connected[name]
        self.refusing.discard(name)
        self.changed_at.pop(name, None)
        self.store.note_unfit(ENVOYS[name], name)
        if all(ENVOYS[other] != ENVOYS[name] for other in self.connected):
            self.store.forget(ENVOYS[name])

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def take(self, data):
        name = data.draw(st.sampled_from(sorted(self.connected)))
        self.take_all(name)

    def take_all(self, name):
        view, served = ENVOYS[name], self.serve(name)
        for type_url in GATED:
            self.store.note_acked(view, type_url, served.of_type(type_url).values())
        if self.store.awaits(view, name):
            self.store.note_proven(view, name)

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def refuse(self, data):
        name = data.draw(st.sampled_from(sorted(self.connected)))
        served = self.serve(name)
        contents = [(url, item) for url in GATED for item in served.of_type(url).values()]
        if contents:
            url, item = data.draw(st.sampled_from(contents))
            event = Nacked(url, "n", ((item.name, item.version),), "no", certain=True)
            self.store.note_refused(ENVOYS[name], event, node=name, at_s=0.0)

    @rule(seconds=st.sampled_from([0.1, 1.0, BOUND_S]))
    def wait(self, seconds):
        self.now += seconds

    @invariant()
    def nobody_waits_longer_than_the_bound(self):
        for hold in self.store._canary.holds():
            assert hold.waiting
            assert set(hold.waiting) <= set(self.connected)
        for name in self.connected:
            view = ENVOYS[name]
            self.serve(name)
            deadline = self.store.next_deadline(view)
            assert deadline is None or self.now < deadline <= self.now + BOUND_S

    @invariant()
    def vanished_pools_get_no_traffic(self):
        for name in self.connected:
            served = served_resources(self.serve(name))
            for assignment in served.endpoints:
                assert bool(assignment.endpoints) == (assignment.cluster_name in self.pools)

    def teardown(self):
        """Nobody refuses any more: after the bound everyone has the newest."""
        self.now += BOUND_S
        for name in self.connected:
            newest = self.store._newest(ENVOYS[name])
            assert self.serve(name) is newest
        assert self.store.held == ()


class Unrefusing(Fleet):
    """Without refusals, every set that anybody is served is consistent in itself."""

    refuse = None

    @invariant()
    def nobody_is_served_an_inconsistent_set(self):
        for name in self.connected:
            assert check_set(served_resources(self.serve(name))) == ()


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestUnrefusing = Unrefusing.TestCase
TestUnrefusing.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)

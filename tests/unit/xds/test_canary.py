"""The gate of a role: who is served a change first, who waits, and what ends the wait."""

import pytest

from control_plane.canary import BOUND_S, Canary
from control_plane.canary_wave import (
    ACKNOWLEDGED,
    NOBODY_LEFT,
    TIMED_OUT,
    Envoy,
    Held,
    Released,
    canaries_of,
    candidate,
    rank,
)
from control_plane.quarantine import Refusal
from control_plane.resources import View
from control_plane.snapshot import CLUSTER, ENDPOINT
from tests.support.xds import Client, make_versions

EDGE = View(role="edge", listen_address="127.0.0.1", listen_port=10000)
OTHER_EDGE = View(role="edge", listen_address="127.0.0.2", listen_port=10000)


def node_view(name):
    return View(role="node", node_id=name)


class Fleet:
    """Connected Envoys, a world by view, and the gate between them."""

    def __init__(self, *names, view=lambda _name: EDGE):
        self.views = {name: view(name) for name in names}
        self.unhealthy = set()
        self.unsettled = set()
        self.worlds = {}
        self.now = 0.0
        self.canary = Canary(self._envoys, self.worlds.get)
        self.publish(cds={"A": "v1"})
        for name in names:
            assert self.version(name) == "v1"

    def _envoys(self, role):
        return [
            Envoy(name, view, name not in self.unsettled)
            for name, view in self.views.items()
            if view.role == role and name not in self.unhealthy
        ]

    def publish(self, only=None, **kinds):
        kinds.setdefault("eds", dict.fromkeys(kinds["cds"], "v1"))
        for view in set(self.views.values()):
            if only is None or view == only:
                self.worlds[view] = make_versions(**kinds)
        self.canary.note_change()

    def serve(self, name):
        view = self.views[name]
        return self.canary.serve(view, name, self.worlds[view], self.now)

    def version(self, name, type_url=CLUSTER):
        served = self.serve(name).of_type(type_url).get("A")
        return served and served.version

    def all(self):
        return {name: self.version(name) for name in self.views}

    def on(self, version):
        return sorted(name for name, found in self.all().items() if found == version)

    def proves(self, name):
        self.canary.note_proven(self.views[name], name)

    def leaves(self, name):
        view = self.views.pop(name)
        return self.canary.note_unfit(view, name)


NAMES = [f"e{number}" for number in range(5)]


@pytest.fixture
def fleet():
    return Fleet(*NAMES)


def first_by_hash(names):
    return min((Envoy(name, EDGE, True) for name in names), key=rank).node


def test_a_change_goes_to_one_of_five_and_on_its_ack_to_all(fleet):
    fleet.publish(cds={"A": "v2"})
    (canary,) = fleet.on("v2")
    assert canary == first_by_hash(NAMES)
    assert fleet.canary.awaits(EDGE, canary)
    fleet.proves(canary)
    assert fleet.on("v2") == NAMES
    assert fleet.canary.next_deadline("edge") is None


def test_the_same_envoy_is_chosen_in_whatever_order_they_ask(fleet):
    for _ in range(2):
        fleet.publish(cds={"A": "v2"})
        for name in reversed(NAMES):
            fleet.serve(name)
        (canary,) = fleet.on("v2")
        assert canary == first_by_hash(NAMES)
        fleet.proves(canary)
        fleet.publish(cds={"A": "v1"})
        fleet.on("v1")
        fleet.proves(canary)


@pytest.mark.parametrize(
    ("envoys", "canaries"), [(2, 1), (10, 1), (19, 1), (20, 2), (29, 2), (30, 3), (1000, 3)]
)
def test_canaries_are_few(envoys, canaries):
    assert canaries_of(envoys) == canaries


def test_of_thirty_three_go_first_and_all_of_them_have_to_take_it():
    fleet = Fleet(*(f"e{number}" for number in range(30)))
    fleet.publish(cds={"A": "v2"})
    first = fleet.on("v2")
    assert len(first) == 3
    for name in first[:2]:
        fleet.proves(name)
        assert fleet.on("v2") == first
    fleet.proves(first[2])
    assert len(fleet.on("v2")) == 30


def test_endpoints_reach_everyone_at_once_while_a_cluster_waits(fleet):
    fleet.publish(cds={"A": "v2"}, eds={"A": "v2"})
    assert {fleet.version(name, ENDPOINT) for name in NAMES} == {"v2"}
    assert len(fleet.on("v1")) == 4


def test_a_change_of_endpoints_alone_opens_no_gate(fleet):
    fleet.publish(cds={"A": "v1"}, eds={"A": "v2"})
    served = [fleet.serve(name) for name in NAMES]
    assert all(item is fleet.worlds[EDGE] for item in served)  # no form of its own was made


def test_a_silent_canary_blocks_nothing_for_longer_than_the_bound(fleet):
    fleet.publish(cds={"A": "v2"})
    assert len(fleet.on("v1")) == 4
    assert fleet.canary.next_deadline("edge") == BOUND_S
    fleet.now = BOUND_S - 0.001
    assert len(fleet.on("v1")) == 4
    fleet.now = BOUND_S
    assert fleet.on("v2") == NAMES


def test_the_bound_counts_from_the_first_change_however_many_follow(fleet):
    for version in ("v2", "v3", "v4"):
        fleet.publish(cds={"A": version})
        assert len(fleet.on("v1")) == 4
        fleet.now += 1.5
    fleet.now = BOUND_S
    assert fleet.on("v4") == NAMES


def test_an_envoy_that_did_not_answer_is_not_the_next_canary(fleet):
    fleet.publish(cds={"A": "v2"})
    (silent,) = fleet.on("v2")
    fleet.now = BOUND_S
    assert fleet.on("v2") == NAMES
    fleet.unsettled = {silent}
    fleet.publish(cds={"A": "v3"})
    assert fleet.on("v3") == [first_by_hash(set(NAMES) - {silent})]


def test_a_change_during_the_wait_goes_to_the_same_canary_which_has_to_take_it_too(fleet):
    fleet.publish(cds={"A": "v2"})
    (canary,) = fleet.on("v2")
    fleet.publish(cds={"A": "v3"})
    assert fleet.on("v3") == [canary]
    fleet.proves(canary)
    assert fleet.on("v3") == NAMES


def test_what_was_proven_of_an_older_plan_proves_nothing_of_a_newer_one():
    fleet = Fleet(*(f"e{number}" for number in range(20)))
    fleet.publish(cds={"A": "v2"})
    one, other = fleet.on("v2")
    fleet.proves(one)
    fleet.publish(cds={"A": "v3"})
    fleet.proves(other)
    assert fleet.on("v3") == sorted([one, other])
    fleet.proves(one)
    assert len(fleet.on("v3")) == 20


def test_what_is_taken_back_while_it_waits_was_never_shown_to_the_others(fleet):
    fleet.publish(cds={"A": "v2"})
    (canary,) = fleet.on("v2")
    fleet.publish(cds={"A": "v1"})
    assert fleet.on("v1") == NAMES
    fleet.proves(canary)
    assert fleet.canary.next_deadline("edge") is None


def test_another_stands_in_for_a_canary_that_goes(fleet):
    fleet.publish(cds={"A": "v2"})
    (canary,) = fleet.on("v2")
    assert fleet.leaves(canary)
    (next_one,) = fleet.on("v2")
    assert next_one == first_by_hash(set(NAMES) - {canary})
    fleet.views[canary] = EDGE  # it comes back, and keeps what it was served
    assert fleet.on("v2") == sorted([canary, next_one])
    fleet.proves(next_one)
    assert fleet.on("v2") == NAMES


def test_nobody_waits_when_no_canary_is_left(fleet):
    fleet.publish(cds={"A": "v2"})
    (canary,) = fleet.on("v2")
    fleet.unhealthy = set(NAMES) - {canary}
    assert not fleet.leaves(canary)
    assert fleet.on("v2") == sorted(set(NAMES) - {canary})
    assert [item.reason for item in fleet.canary.take_news() if isinstance(item, Released)] == [
        NOBODY_LEFT
    ]


def test_an_envoy_alone_waits_for_nobody():
    fleet = Fleet("e1")
    fleet.publish(cds={"A": "v2"})
    assert fleet.on("v2") == ["e1"]
    assert fleet.canary.take_news() == ()


def test_envoys_that_never_took_anything_are_no_canaries_and_hold_up_nobody(fleet):
    fleet.unhealthy = set(NAMES)
    fleet.publish(cds={"A": "v2"})
    assert fleet.on("v2") == NAMES


def test_a_new_envoy_of_a_known_view_is_served_at_once_with_what_is_proven(fleet):
    fleet.publish(cds={"A": "v2"})
    fleet.on("v2")
    fleet.views["new"] = EDGE
    fleet.unhealthy = {"new"}
    assert fleet.version("new") == "v1"


def test_the_first_snapshot_of_a_view_is_the_newest(fleet):
    fleet.publish(cds={"A": "v2"})
    fleet.on("v2")
    fleet.views["new"] = OTHER_EDGE
    fleet.worlds[OTHER_EDGE] = fleet.worlds[EDGE]
    assert fleet.version("new") == "v2"


def test_roles_do_not_wait_for_each_other():
    fleet = Fleet("e1", "e2", "n1", view=lambda name: EDGE if name[0] == "e" else node_view(name))
    fleet.publish(cds={"A": "v2"})
    assert fleet.version("n1") == "v2"
    assert len(fleet.on("v2")) == 2


def test_a_change_of_many_nodes_goes_to_one_of_them_first():
    fleet = Fleet(*NAMES, view=node_view)
    fleet.publish(cds={"A": "v2"})
    (canary,) = fleet.on("v2")
    assert canary == first_by_hash(NAMES)
    fleet.proves(canary)
    assert fleet.on("v2") == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_change_of_one_node_waits_for_nobody(name):
    fleet = Fleet(*NAMES, view=node_view)
    fleet.publish(cds={"A": "v2"}, only=node_view(name))
    assert fleet.on("v2") == [name]
    assert fleet.canary.holds() == fleet.canary.take_news() == ()


def test_canaries_are_among_those_that_the_change_concerns():
    fleet = Fleet(*NAMES, view=node_view)
    concerned = NAMES[2:4]
    for name in concerned:
        fleet.publish(cds={"A": "v2"}, only=node_view(name))
    assert fleet.on("v2") == [first_by_hash(concerned)]


def test_a_change_that_nobody_waits_for_is_no_trial_of_the_next_one():
    fleet = Fleet(*NAMES, view=node_view)
    alone = NAMES[3]
    fleet.publish(cds={"A": "v2"}, only=node_view(alone))
    assert fleet.on("v2") == [alone]
    fleet.now = BOUND_S - 1
    others = sorted(set(NAMES) - {alone})
    for name in others:
        fleet.publish(cds={"A": "v3"}, only=node_view(name))
    assert fleet.on("v3") == [first_by_hash(others)]
    assert fleet.on("v2") == [alone]  # it keeps what it was served
    assert fleet.canary.next_deadline("node") == fleet.now + BOUND_S
    fleet.proves(alone)
    assert fleet.on("v3") == [first_by_hash(others)]
    fleet.proves(first_by_hash(others))
    assert fleet.on("v3") == others


def test_who_asks_tries_it_when_nobody_of_those_looked_at_is_concerned():
    many = [f"n{number}" for number in range(200)]
    fleet = Fleet(*many, view=node_view)
    last = sorted((Envoy(name, EDGE, True) for name in many), key=rank)[-1].node
    fleet.publish(cds={"A": "v2"}, only=node_view(last))
    assert fleet.on("v2") == [last]


REFUSAL = Refusal(type_url=CLUSTER, name="A", version="v2", node="e1", message="no", refused_at=0.0)


def test_a_canarys_refusal_holds_for_its_mates_in_the_version_that_they_would_get():
    fleet = Fleet(*NAMES, view=node_view)
    fleet.publish(cds={"A": "v2"})
    (canary,) = fleet.on("v2")
    fleet.canary.note_refused(fleet.views[canary], canary, [REFUSAL])
    mate = next(name for name in NAMES if name != canary)
    view = fleet.views[mate]
    assert fleet.canary.spoken_for(view, fleet.worlds[view]) == ((REFUSAL, "v2"),)
    fleet.publish(cds={"A": "v1", "B": "v1"})
    assert fleet.canary.spoken_for(view, fleet.worlds[view]) == ()


def test_who_waits_speaks_for_nobody(fleet):
    fleet.publish(cds={"A": "v2"})
    held = fleet.on("v1")
    fleet.canary.note_refused(EDGE, held[0], [REFUSAL])
    assert fleet.canary.spoken_for(EDGE, fleet.worlds[EDGE]) == ()


def test_asking_without_an_envoy_changes_nothing(fleet):
    fleet.publish(cds={"A": "v2"})
    assert fleet.canary.peek(EDGE, fleet.worlds[EDGE], 0.0) is fleet.worlds[EDGE]
    fleet.on("v1")
    peeked = fleet.canary.peek(EDGE, fleet.worlds[EDGE], 0.0)
    assert peeked.of_type(CLUSTER)["A"].version == "v1"
    assert fleet.canary.peek(OTHER_EDGE, fleet.worlds[EDGE], 0.0) is fleet.worlds[EDGE]


def test_what_waits_is_shown_and_told_once_at_either_end(fleet):
    fleet.publish(cds={"A": "v2"})
    held = fleet.on("v1")
    (canary,) = fleet.on("v2")
    (hold,) = fleet.canary.holds()
    assert (hold.role, hold.since, hold.canaries) == ("edge", 0.0, (canary,))
    assert hold.waiting == tuple(held)
    assert hold.contents == ((CLUSTER, "A", "v2"),)
    assert fleet.canary.waiting("edge") == 4
    fleet.proves(canary)
    fleet.all()
    began, ended = fleet.canary.take_news()
    assert isinstance(began, Held)
    assert isinstance(ended, Released)
    assert (ended.reason, ended.hold.waiting) == (ACKNOWLEDGED, tuple(held))
    assert fleet.canary.take_news() == ()
    assert fleet.canary.holds() == ()


def test_a_wait_that_ran_out_is_told_as_such(fleet):
    fleet.publish(cds={"A": "v2"})
    fleet.all()
    fleet.now = BOUND_S
    fleet.all()
    assert [item.reason for item in fleet.canary.take_news() if isinstance(item, Released)] == [
        TIMED_OUT
    ]


def test_a_view_without_envoys_is_kept_while_one_may_come_back_and_no_longer():
    fleet = Fleet(*NAMES, view=node_view)
    fleet.publish(cds={"A": "v2"})
    (canary,) = fleet.on("v2")
    gone = next(name for name in NAMES if name != canary)
    view = fleet.views[gone]
    fleet.leaves(gone)
    fleet.canary.forget(view)
    fleet.views[gone] = view
    assert fleet.version(gone) == "v1"
    fleet.leaves(gone)
    fleet.canary.forget(view)
    fleet.proves(canary)
    assert fleet.canary.before(view) is None
    fleet.publish(cds={"A": "v3"})
    fleet.views[gone] = view
    fleet.worlds[view] = make_versions(cds={"A": "v3"})
    assert fleet.version(gone) == "v3"  # its first snapshot, as far as anyone remembers


def test_only_who_took_something_and_refuses_nothing_may_try_a_change():
    client = Client(cds={"A": "v1"}, eds={"A": "v1"})
    client.send("eds", subscribe=("A",))
    client.ack("eds")
    assert candidate(client.stream, EDGE) is None
    client.send("cds")
    assert candidate(client.stream, EDGE) is None
    client.ack("cds")
    assert candidate(client.stream, EDGE) == Envoy("envoy-1", EDGE, settled=True)
    client.change(cds={"A": "v2"}, eds={"A": "v1"})
    assert candidate(client.stream, EDGE) == Envoy("envoy-1", EDGE, settled=False)
    client.nack("cds")
    assert candidate(client.stream, EDGE) is None


def test_who_came_back_holding_something_took_it():
    client = Client(cds={"A": "v1"})
    client.send("cds", held={"A": "v1"})
    assert candidate(client.stream, EDGE) == Envoy("envoy-1", EDGE, settled=True)


def test_whoever_looks_first_ends_a_wait_whose_time_is_over():
    fleet = Fleet(*NAMES, view=node_view)
    for name in NAMES[1:]:
        fleet.publish(cds={"A": "v2"}, only=node_view(name))
    assert len(fleet.on("v1")) == 4
    fleet.now = BOUND_S
    fleet.serve(NAMES[0])  # whom the change does not concern
    assert fleet.canary.next_deadline("node") is None
    assert fleet.on("v2") == NAMES[1:]

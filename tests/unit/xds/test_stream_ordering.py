"""Waits that end, and removals that come last: how the types of one stream hold each other up."""

import pytest

from control_plane.snapshot import empty_assignment
from control_plane.stream import ORDER_TIMEOUT_S
from tests.support.xds import Client

conformance = pytest.mark.conformance
WORLD = {"cds": {"A": "v1"}, "eds": {"A": "v1"}, "lds": {"L": "v1"}, "rds": {"R": "v1"}}


def connected(**world: dict[str, str]) -> Client:
    """Return a client that holds all of a world."""
    world = WORLD | world
    client = Client(**world)
    greet(client, **world)
    return client


def greet(client: Client, **world: dict[str, str]) -> None:
    """Let a client take all of its world."""
    world = WORLD | world
    client.send("cds")
    client.send("eds", subscribe=tuple(world["eds"]))
    client.ack("cds")
    client.ack("eds")
    client.send("lds")
    client.ack("lds")
    client.send("rds", subscribe=tuple(world["rds"]))
    client.ack("rds")


@conformance("51")
def test_51_when_everything_goes_the_clusters_go_last():
    client = connected()
    assert client.change(cds={}) == [("lds", [], ["L"]), ("rds", [], ["R"])]
    assert client.ack("lds") == []
    assert client.ack("rds") == [("cds", [], ["A"]), ("eds", [], ["A"])]


@conformance("51")
def test_51_a_replaced_pool_is_added_then_routed_then_removed():
    client = connected()
    swapped = WORLD | {"cds": {"B": "v1"}, "eds": {"B": "v1"}, "rds": {"R": "v2"}}
    assert client.change(**swapped) == [("cds", ["B"], [])]
    assert client.send("eds", subscribe=("B",), unsubscribe=("A",)) == [("eds", ["B"], [])]
    assert client.ack("eds") == []
    assert client.ack("cds") == [("rds", ["R"], [])]
    assert client.ack("rds") == [("cds", [], ["A"])]


@conformance("52")
def test_52_a_removal_waits_for_a_bounded_time_only():
    client = connected(cds={"A": "v1", "B": "v1"})
    assert client.change(**(WORLD | {"rds": {"R": "v2"}})) == [("rds", ["R"], [])]
    client.now = ORDER_TIMEOUT_S
    assert client.poll() == [("cds", [], ["B"])]


@conformance("52")
def test_52_no_deadline_stands_for_a_type_that_waits_for_its_own_ack():
    """A deadline in the past that nothing can meet would make the server turn without pause."""
    client = connected(cds={"A": "v1", "B": "v1"})
    changed = WORLD | {"cds": {"A": "v2"}, "rds": {"R": "v2"}}
    assert client.change(**changed)[0] == ("cds", ["A"], [])  # B's removal waits for the routes
    for _ in range(3):
        client.now += ORDER_TIMEOUT_S
        client.poll()
        deadline = client.stream.next_deadline()
        assert deadline is None or deadline > client.now
    client.ack("rds")
    assert client.ack("cds") == [("cds", [], ["B"])]


@conformance("52")
def test_52_at_its_deadline_a_wait_ends_whatever_the_clock_reads():
    client = connected(cds={"A": "v1", "B": "v1"})
    client.now = 5.2  # 5.2 + 5.0 == 10.2, and yet 10.2 - 5.2 < 5.0
    client.change(**(WORLD | {"rds": {"R": "v2"}}))
    client.now = client.stream.next_deadline()
    assert client.poll() == [("cds", [], ["B"])]


@conformance("52")
@conformance("63a")
def test_63a_the_answer_for_an_unknown_name_waits_for_no_other_type():
    """Envoy holds a cluster's ACK until its endpoints are answered: waiting would be a ring."""
    client = connected()
    grown = WORLD | {"cds": {"A": "v1", "B": "v1"}, "eds": {"A": "v1", "B": "v1"}}
    assert client.change(**grown) == [("cds", ["B"], [])]  # B warms, so no ACK comes
    assert client.change(**(WORLD | {"rds": {"R": "v2"}})) == []
    assert client.send("eds", subscribe=("B",)) == [("eds", [], ["B"])]


@conformance("53")
def test_53_forced_endpoints_wait_for_their_own_outstanding_response_and_no_more():
    client = connected()
    moved = WORLD | {"eds": {"A": "v2"}}
    assert client.change(**moved) == [("eds", ["A"], [])]
    assert client.change(**(moved | {"cds": {"A": "v2"}})) == [("cds", ["A"], [])]
    assert client.ack("eds") == [("eds", ["A"], [])]


@conformance("53")
def test_53_endpoints_come_again_after_a_reconnect_with_an_old_cluster():
    client = Client(**(WORLD | {"cds": {"A": "v2"}}))
    assert client.send("eds", subscribe=("A",), held={"A": "v1"}) == []
    assert client.send("cds", held={"A": "v1"}) == [("cds", ["A"], []), ("eds", ["A"], [])]


def test_listeners_and_routes_need_no_cluster_subscription():
    client = Client(**WORLD)
    client.send("lds")
    client.ack("lds")
    assert client.change(**(WORLD | {"lds": {"L": "v2"}})) == [("lds", ["L"], [])]


def test_thresholds_leave_before_the_clusters_they_guard_and_wait_for_nothing():
    client = connected(rtds={"layer": "v1"})
    client.send("rtds", subscribe=("layer",))
    client.ack("rtds")
    grown = WORLD | {"rtds": {"layer": "v2"}, "cds": {"A": "v1", "B": "v1"}}
    grown["eds"] = {"A": "v1", "B": "v1"}
    assert client.change(**grown) == [("rtds", ["layer"], []), ("cds", ["B"], [])]
    assert client.change(**(grown | {"rtds": {"layer": "v3"}})) == []  # one outstanding a type
    assert client.ack("rtds") == [("rtds", ["layer"], [])]  # though B's cluster is not ACKed


def test_a_listeners_extension_is_answered_while_the_listener_waits_for_it():
    client = Client(**(WORLD | {"ecds": {"limits": "v1"}}))
    assert client.send("cds") == [("cds", ["A"], [])]
    assert client.send("ecds", subscribe=("limits",)) == [("ecds", ["limits"], [])]


EMPTIED = empty_assignment("A").version


@conformance("51")
def test_51_endpoints_that_become_none_go_after_the_routes():
    client = connected()
    changed = WORLD | {"eds": {"A": EMPTIED}, "rds": {"R": "v2"}}
    assert client.change(**changed) == [("rds", ["R"], [])]
    assert client.ack("rds") == [("eds", ["A"], [])]


@conformance("51")
def test_51_endpoints_that_become_none_wait_for_nothing_else():
    client = connected()
    assert client.change(**(WORLD | {"eds": {"A": EMPTIED}})) == [("eds", ["A"], [])]


@conformance("52")
def test_52_an_empty_answer_on_which_a_cluster_warms_never_waits():
    client = connected()
    changed = WORLD | {"cds": {"A": "v2"}, "eds": {"A": EMPTIED}, "rds": {"R": "v2"}}
    assert client.change(**changed) == [("cds", ["A"], []), ("eds", ["A"], [])]


@conformance("51")
def test_51_what_routes_left_stays_for_a_while():
    client = Client(route_grace_s=3.0, **WORLD)
    greet(client)
    client.now = 10.0
    swapped = WORLD | {"cds": {}, "eds": {}, "rds": {"R": "v2"}}
    assert client.change(**swapped) == [("rds", ["R"], [])]
    assert client.ack("rds") == []
    assert client.stream.next_deadline() == 13.0
    client.now = 13.0
    assert client.poll() == [("cds", [], ["A"]), ("eds", [], ["A"])]
    assert client.stream.next_deadline() is None


@conformance("52")
def test_52_routes_that_never_rest_hold_nothing_for_ever():
    client = Client(route_grace_s=3.0, **WORLD)
    greet(client)
    client.now = 100.0
    client.change(**(WORLD | {"eds": {"A": EMPTIED}, "rds": {"R": "v2"}}))
    client.ack("rds")
    sent = []
    for second in range(101, 108):
        client.now = float(second)
        said = client.change(**(WORLD | {"eds": {"A": EMPTIED}, "rds": {"R": f"v{second}"}}))
        said += client.ack("rds")
        sent += [second for kind, _, _ in said if kind == "eds"]
    assert sent == [105]

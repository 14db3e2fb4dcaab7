"""The delta stream by the numbered lines of the conformance list, driven by requests only."""

import pytest

from control_plane.stream import (
    MAX_NAME_BYTES,
    MAX_NAMES,
    ORDER_TIMEOUT_S,
    Acked,
    Ignored,
    Nacked,
    StreamError,
    Subscribed,
)
from tests.support.xds import Client, request

conformance = pytest.mark.conformance


@conformance("1")
def test_1_the_first_requests_node_is_kept():
    client = Client(cds={})
    client.send("cds")
    client.send("lds", node="")
    assert client.stream.node.id == "envoy-1"


@conformance("2")
def test_2_a_first_request_without_node_id_ends_the_stream():
    with pytest.raises(StreamError) as error:
        Client().send("cds", node="")
    assert error.value.status == "INVALID_ARGUMENT"


@conformance("3")
def test_3_an_empty_type_ends_the_stream():
    with pytest.raises(StreamError) as error:
        Client().send("")
    assert error.value.status == "INVALID_ARGUMENT"


@conformance("4")
def test_4_an_unknown_type_is_ignored_and_told():
    client = Client(cds={"A": "v1"})
    assert client.send("type.googleapis.com/envoy.Unknown") == []
    assert client.events == [Ignored("type.googleapis.com/envoy.Unknown", "not served here")]
    assert client.send("cds") == [("cds", ["A"], [])]


@conformance("5")
def test_5_a_nack_of_one_type_leaves_the_others_alone():
    client = Client(cds={"A": "v1"}, eds={"A": "v1"})
    client.send("cds")
    client.send("eds", subscribe=("A",))
    assert client.nack("cds") == []
    assert client.ack("eds") == []
    assert client.change(cds={"A": "v1"}, eds={"A": "v2"}) == [("eds", ["A"], [])]


@conformance("6")
def test_6_nonces_are_unique_and_a_foreign_one_is_no_ack():
    client = Client(cds={"A": "v1"}, lds={"L": "v1"})
    client.send("cds")
    client.ack("cds")
    client.send("lds")
    assert client.last["cds"].nonce != client.last["lds"].nonce
    client.send("lds", nonce="of an earlier stream")
    assert client.events[-1] == Ignored(client.last["lds"].type_url, "stale nonce")
    assert client.stream.subscriptions[client.last["lds"].type_url].outstanding


@conformance("25")
def test_25_no_name_comes_twice():
    client = Client(eds={"A": "v1"})
    assert client.send("eds", subscribe=("A", "A")) == [("eds", ["A"], [])]


@conformance("26")
def test_26_every_body_has_the_responses_type():
    client = Client(cds={"A": "v1", "B": "v1"})
    client.send("cds")
    response = client.last["cds"]
    assert {item.resource.type_url for item in response.resources} == {response.type_url}


@conformance("31")
@pytest.mark.parametrize("kind", ["cds", "lds"])
def test_31_an_empty_world_is_said_once(kind):
    client = Client(cds={})
    assert client.send(kind) == [(kind, [], [])]
    assert client.ack(kind) == []
    assert client.poll() == []


@conformance("32")
def test_32_a_reconnect_gets_what_changed_and_what_went():
    client = Client(cds={"A": "v1", "B": "v2"})
    held = {"A": "v1", "B": "v1", "C": "v1"}
    assert client.send("cds", held=held) == [("cds", ["B"], ["C"])]


def test_a_reconnect_that_holds_everything_gets_nothing():
    client = Client(cds={"A": "v1"}, eds={"A": "v1"}, lds={"L": "v1"}, rds={"R": "v1"})
    assert client.send("cds", held={"A": "v1"}) == []
    assert client.send("eds", subscribe=("A",), held={"A": "v1"}) == []
    assert client.send("lds", held={"L": "v1"}) == []
    assert client.send("rds", subscribe=("R",), held={"R": "v1"}) == []


@conformance("33")
def test_33_initial_versions_count_in_the_first_request_only():
    client = Client(cds={"A": "v1"})
    client.send("cds")
    client.ack("cds", held={"A": "v0", "Z": "v1"})
    assert client.change(cds={"A": "v1"}) == []


@conformance("34")
def test_34_a_held_resource_that_is_named_again_is_sent_again():
    client = Client(eds={"A": "v1"})
    client.send("eds", subscribe=("A",))
    client.ack("eds")
    assert client.send("eds", subscribe=("A",)) == [("eds", ["A"], [])]


@conformance("35")
def test_35_one_of_a_thousand_changes_and_one_is_sent():
    many = {f"C{i}": "v1" for i in range(1000)}
    client = Client(cds=many)
    client.send("cds")
    client.ack("cds")
    assert client.change(cds=many | {"C7": "v2"}) == [("cds", ["C7"], [])]


@conformance("36")
def test_36_a_removal_is_said_once():
    client = Client(cds={"A": "v1", "B": "v1"})
    client.send("cds")
    client.ack("cds")
    assert client.change(cds={"B": "v1"}) == [("cds", [], ["A"])]
    assert client.ack("cds") == []
    assert client.change(cds={"B": "v1"}) == []


@conformance("37")
def test_37_an_unknown_name_is_answered_as_removed_and_watched():
    client = Client(eds={})
    assert client.send("eds", subscribe=("X",)) == [("eds", [], ["X"])]
    assert client.ack("eds") == []
    assert client.change(eds={"X": "v1"}) == [("eds", ["X"], [])]


@conformance("63a")
@pytest.mark.case("D7")
def test_63a_d7_a_name_that_went_while_the_client_was_away_is_answered():
    client = Client(eds={})
    assert client.send("eds", subscribe=("X",), held={"X": "v1"}) == [("eds", [], ["X"])]


@conformance("38")
def test_38_unsubscribing_what_was_never_subscribed_is_nothing():
    client = Client(eds={"A": "v1"})
    client.send("eds", subscribe=("A",))
    client.ack("eds")
    assert client.send("eds", unsubscribe=("Z",)) == []


@conformance("39")
def test_39_a_pure_unsubscribe_is_silent_and_lasts():
    client = Client(eds={"A": "v1"})
    client.send("eds", subscribe=("A",))
    client.ack("eds")
    assert client.send("eds", unsubscribe=("A",)) == []
    assert client.change(eds={"A": "v2"}) == []
    assert client.send("eds", subscribe=("A",)) == [("eds", ["A"], [])]


@conformance("40")
@pytest.mark.parametrize(
    ("world", "answer"), [({"A": "v1"}, (["A"], [])), ({}, ([], ["A"]))], ids=["there", "gone"]
)
def test_40_unsubscribing_a_name_that_the_wildcard_covers_is_answered(world, answer):
    client = Client(cds={"A": "v1"})
    client.send("cds", subscribe=("*", "A"))
    client.ack("cds")
    if not world:
        client.change(cds={})
        client.ack("cds")
    assert client.send("cds", unsubscribe=("A",)) == [("cds", *answer)]


@conformance("41")
def test_41_a_legacy_wildcard_ends_for_good():
    client = Client(cds={"A": "v1", "B": "v1"})
    assert client.send("cds") == [("cds", ["A", "B"], [])]
    client.ack("cds", subscribe=("A",))
    client.ack("cds")
    client.send("cds", unsubscribe=("*",))
    assert client.change(cds={"A": "v2", "B": "v2"}) == [("cds", ["A"], [])]
    client.ack("cds", unsubscribe=("A",))
    assert client.change(cds={"A": "v3", "B": "v3"}) == []
    assert client.send("cds") == []


@conformance("42")
def test_42_a_subscription_counts_beside_a_stale_nonce():
    client = Client(eds={"A": "v1", "B": "v1"})
    client.send("eds", subscribe=("A",))
    client.ack("eds")
    assert client.send("eds", nonce="stale", subscribe=("B",)) == [("eds", ["B"], [])]


@conformance("43")
def test_43_a_request_without_nonce_is_no_ack_and_one_with_both_is_both():
    client = Client(eds={"A": "v1", "B": "v1"})
    client.send("eds", subscribe=("A",))
    assert client.send("eds", subscribe=("B",)) == []  # still un-ACKed: one outstanding
    assert client.ack("eds", subscribe=()) == [("eds", ["B"], [])]
    assert [type(event) for event in client.events] == [Subscribed, Subscribed, Acked]


@conformance("8")
@conformance("44")
def test_44_a_refused_version_is_not_sent_again_but_any_other_is():
    client = Client(cds={"A": "v1"})
    client.send("cds")
    client.ack("cds")
    client.change(cds={"A": "v2"})
    assert client.nack("cds") == []
    assert client.change(cds={"A": "v2"}) == []
    assert client.poll() == []
    assert client.change(cds={"A": "v3"}) == [("cds", ["A"], [])]


@conformance("10")
def test_10_the_version_before_a_refused_one_is_sent_again():
    client = Client(cds={"A": "v1"})
    client.send("cds")
    client.ack("cds")
    client.change(cds={"A": "v2"})
    client.nack("cds")
    assert client.change(cds={"A": "v1"}) == [("cds", ["A"], [])]


@conformance("11")
def test_11_the_error_decides_and_its_tail_is_kept():
    client = Client(cds={"A": "v1", "B": "v1"})
    client.send("cds")
    client.nack("cds", "dump " * 1000 + "cluster B: reason")
    event = client.events[-1]
    assert isinstance(event, Nacked)
    assert event.versions == (("B", "v1"),)
    assert event.message.endswith("cluster B: reason")
    assert len(event.message) == 500


def test_a_refused_resource_that_goes_is_removed_since_part_of_it_may_live():
    client = Client(cds={"A": "v1", "B": "v1"})
    client.send("cds")
    assert client.nack("cds", "A is bad") == [("cds", ["B"], [])]  # it may have fallen with A
    client.ack("cds")
    assert client.change(cds={}) == [("cds", [], ["A", "B"])]


def test_where_nobody_is_named_nothing_of_the_response_is_sent_again():
    client = Client(cds={"A": "v1", "B": "v1"})
    client.send("cds")
    assert client.nack("cds", "something is bad") == []
    assert client.change(cds={"A": "v1", "B": "v2"}) == [("cds", ["B"], [])]


@conformance("45")
def test_45_what_is_not_subscribed_is_not_sent():
    client = Client(eds={"A": "v1", "B": "v1"})
    client.send("eds", subscribe=("A",))
    client.ack("eds")
    assert client.change(eds={"A": "v1", "B": "v2"}) == []


@conformance("46")
def test_46_a_name_in_both_lists_is_unsubscribed():
    client = Client(eds={"A": "v1"})
    client.send("eds", subscribe=("B",))
    client.ack("eds")
    assert client.send("eds", subscribe=("A",), unsubscribe=("A",)) == []


@conformance("49")
@conformance("50")
def test_49_changes_behind_an_un_acked_response_are_merged():
    client = Client(cds={"A": "v1", "B": "v1"})
    client.send("cds")
    assert client.change(cds={"A": "v2", "B": "v1"}) == []
    assert client.change(cds={"A": "v3", "B": "v2"}) == []
    assert client.ack("cds") == [("cds", ["A", "B"], [])]
    versions = {item.name: item.version for item in client.last["cds"].resources}
    assert versions == {"A": "v3", "B": "v2"}


WORLD = {"cds": {"A": "v1"}, "eds": {"A": "v1"}, "lds": {"L": "v1"}, "rds": {"R": "v1"}}


def connected() -> Client:
    client = Client(**WORLD)
    client.send("cds")
    client.send("eds", subscribe=("A",))
    client.ack("cds")
    client.ack("eds")
    client.send("lds")
    client.ack("lds")
    client.send("rds", subscribe=("R",))
    client.ack("rds")
    return client


@conformance("51")
@conformance("52")
def test_51_52_additions_go_out_before_what_refers_to_them():
    client = connected()
    grown = WORLD | {"cds": {"A": "v1", "B": "v1"}, "rds": {"R": "v2"}}
    grown |= {"eds": {"A": "v1", "B": "v1"}}
    assert client.change(**grown) == [("cds", ["B"], [])]
    assert client.send("eds", subscribe=("B",)) == [("eds", ["B"], [])]  # waits for no ACK
    assert client.ack("cds") == []
    assert client.ack("eds") == [("rds", ["R"], [])]


@conformance("51")
def test_51_removals_come_after_the_routes_that_used_them():
    client = connected()
    client.change(**(WORLD | {"cds": {"A": "v1", "B": "v1"}}))
    client.ack("cds")
    shrunk = WORLD | {"cds": {"B": "v1"}, "rds": {"R": "v2"}}
    assert client.change(**shrunk) == [("rds", ["R"], [])]
    assert client.ack("rds") == [("cds", [], ["A"])]


@conformance("52")
def test_52_the_wait_for_an_ack_is_bounded():
    client = connected()
    client.change(**(WORLD | {"cds": {"A": "v2"}, "rds": {"R": "v2"}}))
    assert client.poll() == []
    assert client.stream.next_deadline() == ORDER_TIMEOUT_S
    client.now = ORDER_TIMEOUT_S
    assert client.poll() == [("rds", ["R"], [])]
    assert client.stream.next_deadline() is None


@conformance("53")
@pytest.mark.case("D3")
def test_53_d3_endpoints_come_again_after_a_changed_cluster():
    client = connected()
    said = client.change(**(WORLD | {"cds": {"A": "v2"}}))
    assert said == [("cds", ["A"], []), ("eds", ["A"], [])]


@conformance("53")
def test_53_only_for_names_that_the_stream_subscribes_to():
    client = Client(cds={"A": "v1"}, eds={"A": "v1", "B": "v1"})
    client.send("cds")
    client.ack("cds")
    client.send("eds", subscribe=("B",))
    client.ack("eds")
    assert client.change(cds={"A": "v2"}, eds={"A": "v1", "B": "v1"}) == [("cds", ["A"], [])]


@conformance("56")
def test_56_routes_stay_when_only_their_listener_changes():
    client = connected()
    assert client.change(**(WORLD | {"lds": {"L": "v2"}})) == [("lds", ["L"], [])]
    assert client.ack("lds") == []


@conformance("63")
def test_63_a_moved_weight_moves_endpoints_only():
    client = connected()
    assert client.change(**(WORLD | {"eds": {"A": "v2"}})) == [("eds", ["A"], [])]


def test_nothing_is_sent_before_there_is_a_snapshot():
    assert Client().send("cds") == []


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"subscribe": ("x" * (MAX_NAME_BYTES + 1),)}, "INVALID_ARGUMENT"),
        ({"subscribe": tuple(str(i) for i in range(MAX_NAMES + 1))}, "RESOURCE_EXHAUSTED"),
    ],
    ids=["a long name", "many names"],
)
def test_requests_are_bounded(fields, status):
    with pytest.raises(StreamError) as error:
        Client().send("eds", **fields)
    assert error.value.status == status


def test_names_are_bounded_over_requests_too():
    client = Client(eds={})
    half = MAX_NAMES // 2 + 1
    client.send("eds", subscribe=tuple(f"a{i}" for i in range(half)))
    with pytest.raises(StreamError, match="names subscribed"):
        client.stream.receive(request("eds", subscribe=tuple(f"b{i}" for i in range(half))))

"""After a NACK: who is blamed, what may be sent again, and a status that does not gloss over it."""

import pytest

from control_plane.stream import Ignored, Nacked, Subscribed
from control_plane.xds_status import stream_status
from tests.support.xds import KINDS, Client

conformance = pytest.mark.conformance


def status_of(client, kind):
    short = KINDS[kind].rpartition(".")[2]
    return next(item for item in stream_status(client.stream, "node", 0.0).types
                if item.type == short)  # fmt: skip


def refused(text="bad"):
    """Return a client that took version 1 of A and B, and refused version 2 of A."""
    client = Client(cds={"A": "v1", "B": "v1"})
    client.send("cds")
    client.ack("cds")
    client.change(cds={"A": "v2", "B": "v1"})
    client.nack("cds", text)
    return client


@pytest.mark.case("D5")
def test_d5_others_move_on_and_the_status_still_tells_of_the_refused_one():
    client = refused("cluster A: no good")
    assert client.change(cds={"A": "v2", "B": "v2"}) == [("cds", ["B"], [])]
    client.ack("cds")
    status = status_of(client, "cds")
    assert (status.state, status.last_error) == ("ERROR", "cluster A: no good")
    assert status.refused == ("A",)
    assert (status.responses, status.acks, status.nacks) == (3, 2, 1)


@pytest.mark.case("D5")
@conformance("9")
def test_9_d5_the_fix_goes_out_at_once_and_clears_the_status():
    client = refused()
    assert client.change(cds={"A": "v3", "B": "v1"}) == [("cds", ["A"], [])]
    client.ack("cds")
    status = status_of(client, "cds")
    assert (status.state, status.last_error, status.refused) == ("SYNCED", "", ())


@conformance("44")
def test_44_a_refused_version_that_an_operator_puts_back_is_tried_once_more():
    client = refused()
    client.change(cds={"A": "v3", "B": "v1"})
    client.ack("cds")
    back = {"A": "v2", "B": "v1"}
    assert client.change(cds=back) == [("cds", ["A"], [])]
    client.nack("cds")
    assert client.change(cds=back) == []


@conformance("44")
def test_44_a_refused_resource_that_goes_away_is_removed():
    client = refused()
    assert client.change(cds={"B": "v1"}) == [("cds", [], ["A"])]  # Envoy may hold part of it
    client.ack("cds")
    assert status_of(client, "cds").state == "SYNCED"


@conformance("44")
def test_44_an_unsubscribed_refusal_is_no_error_any_more():
    client = Client(eds={"A": "v1"})
    client.send("eds", subscribe=("A",))
    client.nack("eds")
    assert status_of(client, "eds").state == "ERROR"
    client.send("eds", unsubscribe=("A",))
    assert status_of(client, "eds").state == "SYNCED"


@conformance("11")
@pytest.mark.case("D5")
def test_11_d5_error_detail_alone_makes_a_nack_even_without_a_text():
    client = refused("")
    assert isinstance(client.events[-1], Nacked)
    assert status_of(client, "cds").state == "ERROR"


@pytest.mark.parametrize(
    ("text", "blamed"),
    [
        pytest.param("Error adding/updating cluster(s) ab: bad", ["ab"], id="a word of its own"),
        pytest.param("route: unknown cluster 'b', 'ab'", ["ab", "b"], id="quoted"),
        pytest.param("something is wrong", ["a", "ab", "b"], id="no name: all are in doubt"),
    ],
)
def test_a_nack_names_what_envoy_names(text, blamed):
    client = Client(cds=dict.fromkeys(("a", "ab", "b"), "v1"))
    client.send("cds")
    client.nack("cds", text)
    assert [name for name, _ in client.events[-1].versions] == blamed


@conformance("6")
def test_6_a_nonce_of_an_earlier_stream_in_the_first_request():
    client = Client(cds={"A": "v1"})
    assert client.send("cds", nonce="earlier") == [("cds", ["A"], [])]
    assert client.events == [Ignored(KINDS["cds"], "stale nonce"), Subscribed(KINDS["cds"])]


def test_the_status_tells_not_sent_from_stale_from_synced():
    client = Client()
    client.send("cds")
    assert status_of(client, "cds").state == "NOT_SENT"
    client.change(cds={"A": "v1"})
    assert status_of(client, "cds").state == "STALE"
    client.ack("cds")
    status = status_of(client, "cds")
    assert (status.state, status.wildcard, status.resources) == ("SYNCED", True, 1)
    assert status.sent_nonce == status.acked_nonce == client.last["cds"].nonce

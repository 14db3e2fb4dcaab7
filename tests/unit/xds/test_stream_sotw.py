"""The state-of-the-world variant, line by line: every request names all, every answer counts."""

import itertools
from typing import Any

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import any_pb2
from hypothesis import given
from hypothesis import strategies as st

from control_plane.snapshot import ENDPOINT, Snapshot, VersionedResource
from control_plane.stream import AdsStream, Ignored, Nacked, StreamError
from control_plane.variants import STATE_OF_THE_WORLD
from tests.support.xds import KINDS

conformance = pytest.mark.conformance
WORLD = {"cds": {"A": "v1"}, "eds": {"A": "v1"}, "lds": {"L": "v1"}, "rds": {"R": "v1"}}


def make_snapshot(**kinds: dict[str, str]) -> Snapshot:
    """Return a snapshot whose bodies tell name and version."""
    resources = {
        KINDS[kind]: {
            name: VersionedResource(
                name,
                version,
                any_pb2.Any(type_url=KINDS[kind], value=f"{name}={version}".encode()),
            )
            for name, version in versions.items()
        }
        for kind, versions in kinds.items()
    }
    return Snapshot(resources, {name: name for name in kinds.get("cds", {})})


class Client:
    """One stream; what is answered is told as kind and bodies."""

    def __init__(self, **kinds: dict[str, str]) -> None:
        numbers = itertools.count(1)
        self.stream = AdsStream(lambda: f"n{next(numbers)}", STATE_OF_THE_WORLD)
        self.last: dict[str, Any] = {}
        self.wanted: dict[str, tuple[str, ...]] = {}
        self.events: list[Any] = []
        self.now = 0.0
        if kinds:
            self.stream.set_snapshot(make_snapshot(**kinds))

    def send(self, kind, *names, nonce="", error=None, version="", node="e1"):
        self.wanted[kind] = names
        message = discovery_pb2.DiscoveryRequest(
            type_url=KINDS.get(kind, kind),
            resource_names=names,
            response_nonce=nonce,
            version_info=version,
        )
        if node:
            message.node.CopyFrom(base_pb2.Node(id=node))
        if error is not None:
            message.error_detail.message = error
        self.events += self.stream.receive(message)
        return self.poll()

    def ack(self, kind, *names):
        last = self.last[kind]
        names = names or self.wanted[kind]
        return self.send(kind, *names, nonce=last.nonce, version=last.version_info)

    def nack(self, kind, error="bad"):
        return self.send(kind, *self.wanted[kind], nonce=self.last[kind].nonce, error=error)

    def change(self, **kinds):
        self.stream.set_snapshot(make_snapshot(**kinds))
        return self.poll()

    def poll(self):
        said = []
        for response in self.stream.responses(self.now):
            kind = next(k for k, url in KINDS.items() if url == response.type_url)
            self.last[kind] = response
            assert all(body.type_url == response.type_url for body in response.resources)
            said.append((kind, [body.value.decode() for body in response.resources]))
        return said


def holding(**world):
    """Return a client that took all of a world."""
    client = Client(**(WORLD | world))
    client.send("cds")
    client.send("eds", *(WORLD | world)["eds"])
    client.ack("cds")
    client.ack("eds")
    client.send("lds")
    client.ack("lds")
    client.send("rds", *(WORLD | world)["rds"])
    client.ack("rds")
    return client


@conformance("2")
def test_2_a_first_request_without_a_node_ends_the_stream():
    with pytest.raises(StreamError, match=r"node\.id"):
        Client(**WORLD).send("cds", node="")


@conformance("1")
def test_1_the_node_of_the_first_request_is_kept():
    client = Client(**WORLD)
    client.send("cds")
    client.send("lds", node="")
    assert client.stream.node.id == "e1"


@conformance("3")
@conformance("4")
def test_3_4_a_type_is_named_and_an_unknown_one_is_ignored():
    client = Client(**WORLD)
    with pytest.raises(StreamError, match="type_url is empty"):
        client.send("")
    client = Client(**WORLD)
    assert client.send("type.googleapis.com/nobody.knows") == []
    assert isinstance(client.events[-1], Ignored)
    assert client.send("cds") == [("cds", ["A=v1"])]


@conformance("5")
def test_5_one_types_nack_touches_no_other():
    client = holding()
    changed = WORLD | {"cds": {"A": "v2"}, "rds": {"R": "v1"}}
    client.change(**changed)
    client.nack("cds")
    client.ack("eds")
    assert client.change(**(changed | {"eds": {"A": "v2"}})) == [("eds", ["A=v2"])]


@conformance("6")
def test_6_nonces_are_new_each_time_and_another_streams_is_no_ack():
    client = holding()
    before = client.last["eds"].nonce
    client.change(**(WORLD | {"eds": {"A": "v2"}}))
    assert client.last["eds"].nonce not in ("", before)
    client.send("eds", "A", nonce="of-another-stream")
    assert isinstance(client.events[-1], Ignored)
    assert client.stream.subscriptions[ENDPOINT].outstanding is not None


@conformance("7")
def test_7_an_ack_is_answered_with_silence():
    client = Client(**WORLD)
    client.send("eds", "A")
    assert client.ack("eds") == []


@conformance("8")
@conformance("9")
def test_8_9_a_refused_version_is_not_sent_again_and_the_next_is_at_once():
    client = holding()
    client.change(**(WORLD | {"cds": {"A": "v2"}}))
    assert client.nack("cds", "A is bad") == []
    assert client.change(**(WORLD | {"cds": {"A": "v2"}})) == []
    refusal = next(event for event in client.events if isinstance(event, Nacked))
    assert refusal.versions == (("A", "v2"),)
    assert client.change(**(WORLD | {"cds": {"A": "v3"}}))[0] == ("cds", ["A=v3"])


@conformance("9")
def test_9_a_nack_that_names_nobody_blames_only_what_the_response_changed():
    client = holding()
    more = {"cds": {"A": "v1", "B": "v1"}, "eds": {"A": "v1", "B": "v1"}}
    client.change(**(WORLD | more))
    client.ack("cds")
    client.change(**(WORLD | more | {"cds": {"A": "v2", "B": "v1"}}))
    client.nack("cds", "no good")
    refusal = next(event for event in client.events if isinstance(event, Nacked))
    assert (refusal.versions, refusal.certain) == ((("A", "v2"),), True)
    fixed = client.change(**(WORLD | more | {"cds": {"A": "v3", "B": "v1"}}))
    assert fixed[0] == ("cds", ["A=v3", "B=v1"])


@conformance("10")
def test_10_the_version_before_is_sent_since_a_part_of_the_refused_may_live():
    client = holding()
    client.change(**(WORLD | {"cds": {"A": "v2"}}))
    client.nack("cds")
    assert client.change(**WORLD)[0] == ("cds", ["A=v1"])


@conformance("11")
def test_11_the_error_decides_not_the_version():
    client = holding()
    client.change(**(WORLD | {"eds": {"A": "v2"}}))
    last = client.last["eds"]
    client.send("eds", "A", nonce=last.nonce, version=last.version_info, error="no")
    assert isinstance(client.events[-1], Nacked)


@conformance("12")
def test_12_a_first_response_may_be_refused():
    client = Client(**WORLD)
    client.send("cds")
    assert client.nack("cds") == []
    assert client.change(**(WORLD | {"cds": {"A": "v2"}})) == [("cds", ["A=v2"])]


@conformance("13")
@conformance("14")
def test_13_14_a_stale_request_is_not_answered_and_no_name_is_lost():
    client = Client(**(WORLD | {"eds": {"A": "v1", "B": "v1"}}))
    client.send("eds", "A")
    first = client.last["eds"].nonce
    client.ack("eds")
    client.change(**(WORLD | {"eds": {"A": "v2", "B": "v1"}}))
    assert client.send("eds", "A", "B", nonce=first) == []
    assert client.ack("eds", "A", "B") == [("eds", ["B=v1"])]


@conformance("15")
def test_15_a_name_more_is_answered_though_nothing_changed():
    client = Client(**(WORLD | {"eds": {"A": "v1", "B": "v1"}}))
    client.send("eds", "A")
    client.ack("eds")
    assert client.ack("eds", "A", "B") == [("eds", ["B=v1"])]


@conformance("16")
@conformance("17")
def test_16_17_a_dropped_name_is_silent_and_named_again_is_sent_again():
    client = Client(**(WORLD | {"eds": {"A": "v1", "B": "v1"}}))
    client.send("eds", "A", "B")
    assert client.ack("eds", "A") == []
    assert client.change(**(WORLD | {"eds": {"A": "v1", "B": "v2"}})) == []
    assert client.ack("eds", "A", "B") == [("eds", ["B=v2"])]


@conformance("18")
def test_18_no_name_of_a_named_type_is_an_end_not_a_wildcard():
    client = Client(**WORLD)
    client.send("eds", "A")
    client.ack("eds")
    assert client.send("eds", nonce=client.last["eds"].nonce) == []
    assert client.change(**(WORLD | {"eds": {"A": "v2"}})) == []


@conformance("19")
@conformance("20")
def test_19_20_the_wildcard_old_and_new():
    world = WORLD | {"cds": {"A": "v1", "B": "v1"}}
    client = Client(**world)
    assert client.send("cds") == [("cds", ["A=v1", "B=v1"])]
    assert client.ack("cds") == []  # still everything
    moved = world | {"cds": {"A": "v1", "B": "v2"}}
    assert client.change(**moved) == [("cds", ["A=v1", "B=v2"])]
    client.ack("cds", "A")
    assert client.change(**world) == []
    assert client.send("cds", nonce=client.last["cds"].nonce) == []  # nothing any more
    assert client.change(**(world | {"cds": {"A": "v9", "B": "v9"}})) == []
    client = Client(**world)
    assert client.send("cds", "*", "A") == [("cds", ["A=v1", "B=v1"])]
    client.ack("cds", "A")
    assert client.change(**(world | {"cds": {"A": "v1", "B": "v2"}})) == []


@conformance("21")
def test_21_one_changed_cluster_comes_with_all_others():
    client = Client(**(WORLD | {"cds": {"A": "v1", "B": "v1", "C": "v1"}}))
    client.send("cds")
    client.ack("cds")
    changed = WORLD | {"cds": {"A": "v1", "B": "v2", "C": "v1"}}
    assert client.change(**changed) == [("cds", ["A=v1", "B=v2", "C=v1"])]


@conformance("22")
def test_22_the_last_cluster_goes_with_an_empty_response_of_another_version():
    client = Client(cds={"A": "v1"})
    client.send("cds")
    before = client.last["cds"].version_info
    client.ack("cds")
    assert client.change(cds={}) == [("cds", [])]
    assert client.last["cds"].version_info not in ("", before)


@conformance("31")
def test_31_an_empty_world_is_answered_so_that_a_start_can_end():
    client = Client(cds={}, eds={})
    assert client.send("cds") == [("cds", [])]


@conformance("23")
def test_23_of_endpoints_the_changed_ones_are_enough():
    client = Client(**(WORLD | {"eds": {"A": "v1", "B": "v1"}}))
    client.send("eds", "A", "B")
    client.ack("eds")
    assert client.change(**(WORLD | {"eds": {"A": "v2", "B": "v1"}})) == [("eds", ["A=v2"])]


@conformance("24")
def test_24_an_unknown_route_is_silence_until_it_is_there():
    client = Client(**WORLD)
    assert client.send("rds", "X") == []
    assert client.change(**(WORLD | {"rds": {"R": "v1", "X": "v1"}})) == [("rds", ["X=v1"])]


@conformance("63a")
def test_63a_an_unknown_clusters_endpoints_are_explicitly_none():
    client = Client(**WORLD)
    client.send("eds", "gone")
    (body,) = client.last["eds"].resources
    assignment = endpoint_pb2.ClusterLoadAssignment()
    assert body.Unpack(assignment)
    assert (assignment.cluster_name, len(assignment.endpoints)) == ("gone", 0)
    client.ack("eds")
    assert client.poll() == []
    assert client.change(**(WORLD | {"eds": {"gone": "v1"}})) == [("eds", ["gone=v1"])]


@conformance("25")
def test_25_a_name_given_twice_is_answered_once():
    client = Client(**WORLD)
    assert client.send("eds", "A", "A") == [("eds", ["A=v1"])]


@conformance("28")
@pytest.mark.parametrize(("kind", "name"), [("eds", "A"), ("rds", "R"), ("cds", "A")])
def test_28_a_new_stream_is_answered_in_full_though_its_version_is_ours(kind, name):
    client = holding()
    version = client.last[kind].version_info
    again = Client(**WORLD)
    assert again.send(kind, name, version=version) == [(kind, [f"{name}=v1"])]


@conformance("29")
def test_29_equal_content_has_an_equal_version_on_every_stream():
    one, two, other = Client(**WORLD), Client(**WORLD), Client(**(WORLD | {"cds": {"A": "v2"}}))
    for client in (one, two, other):
        client.send("cds")
    versions = [client.last["cds"].version_info for client in (one, two, other)]
    assert versions[0] == versions[1] != versions[2]


@conformance("51")
def test_51_a_replaced_pool_is_added_beside_the_old_one_then_routed_then_removed():
    client = holding()
    swapped = WORLD | {"cds": {"B": "v1"}, "eds": {"B": "v1"}, "rds": {"R": "v2"}}
    assert client.change(**swapped) == [("cds", ["A=v1", "B=v1"])]
    assert client.send("eds", "B", nonce=client.last["eds"].nonce) == [("eds", ["B=v1"])]
    assert client.ack("eds") == []
    assert client.ack("cds") == [("rds", ["R=v2"])]
    assert client.ack("rds") == [("cds", ["B=v1"])]


@conformance("53")
def test_53_a_changed_clusters_endpoints_come_again():
    client = holding()
    assert client.change(**(WORLD | {"cds": {"A": "v2"}})) == [
        ("cds", ["A=v2"]),
        ("eds", ["A=v1"]),
    ]


def test_what_fell_with_a_refused_cluster_comes_with_its_good_form():
    client = holding()
    client.change(**(WORLD | {"cds": {"A": "v2", "B": "v1"}}))
    assert client.nack("cds", "cluster A: bad") == []  # no whole answer without A
    restored = WORLD | {"cds": {"A": "v1", "B": "v1"}}  # as the quarantine serves it
    assert client.change(**restored)[0] == ("cds", ["A=v1", "B=v1"])


kinds = st.sampled_from(["cds", "eds", "lds", "rds"])
steps = st.one_of(
    st.tuples(st.just("ask"), kinds, st.lists(st.sampled_from(["A", "B", "R", "L", "*"]))),
    st.tuples(st.just("ack"), kinds, st.none()),
    st.tuples(st.just("nack"), kinds, st.none()),
    st.tuples(st.just("stale"), kinds, st.lists(st.sampled_from(["A", "B"]))),
    st.tuples(
        st.just("change"),
        kinds,
        st.dictionaries(st.sampled_from(["A", "B", "R", "L"]), st.sampled_from(["v1", "v2"])),
    ),
)


def play(client, world, what, kind, value):
    if what == "change":
        world[kind] = value
        client.change(**world)
    elif what == "ask":
        client.send(kind, *value, nonce=client.last[kind].nonce if kind in client.last else "")
    elif what == "stale":
        client.send(kind, *value, nonce="stale")
    elif kind in client.last:
        client.ack(kind) if what == "ack" else client.nack(kind)


@given(st.lists(steps, max_size=25))
def test_any_sequence_ends_with_what_is_wanted_or_a_refusal(sequence):
    client, world = Client(**WORLD), dict(WORLD)
    for what, kind, value in sequence:
        play(client, world, what, kind, value)
        for response in client.last.values():
            names = [body.value.split(b"=")[0] for body in response.resources if body.value]
            assert len(names) == len(set(names))
    for _ in range(12):
        client.now += 10
        client.poll()
        for kind in list(client.last):
            client.ack(kind)
    for kind, subscription in ((k, client.stream.subscriptions.get(u)) for k, u in KINDS.items()):
        if subscription is None:
            continue
        for name, version in world.get(kind, {}).items():
            if subscription.covers(name) and not subscription.refused:
                assert subscription.held.get(name) == version

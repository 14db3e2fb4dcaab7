"""Line 63b: endpoints that are resumed while nobody asks for clusters raise an alarm, once."""

import pytest
from envoy.service.discovery.v3 import discovery_pb2

from control_plane.orphans import ORPHAN_S
from control_plane.snapshot import ENDPOINT
from control_plane.stream import AdsStream
from control_plane.variants import STATE_OF_THE_WORLD
from tests.support.xds import Client, make_versions

pytestmark = pytest.mark.conformance("63b")
WORLD = {"cds": {"A": "v1"}, "eds": {"A": "v1"}}


def resumed():
    client = Client(**WORLD)
    client.send("eds", subscribe=("A",), held={"A": "v1"})
    return client


def alarm_after(client, seconds):
    client.now += seconds
    client.poll()
    return client.stream.orphans.due


def test_63b_no_request_for_clusters_raises_an_alarm_in_time_and_once():
    client = resumed()
    assert client.stream.next_deadline() == ORPHAN_S
    assert not alarm_after(client, ORPHAN_S - 0.1)
    assert alarm_after(client, 0.1)
    assert client.stream.next_deadline() is None
    client.stream.orphans.due = False
    assert not alarm_after(client, 10 * ORPHAN_S)


@pytest.mark.parametrize("first", ["cds", "eds"])
def test_63b_a_request_for_clusters_before_or_after_is_all_that_is_asked_for(first):
    client = Client(**WORLD)
    asked = {"cds": {}, "eds": {"subscribe": ("A",), "held": {"A": "v1"}}}
    for kind in sorted(asked, key=lambda kind: kind != first):
        client.send(kind, **asked[kind])
    client.ack("cds")
    assert client.stream.next_deadline() is None
    assert not alarm_after(client, ORPHAN_S)


def test_63b_a_client_that_resumes_nothing_may_ask_for_endpoints_alone():
    client = Client(**WORLD)
    client.send("eds", subscribe=("A",))
    client.ack("eds")
    assert not alarm_after(client, ORPHAN_S)


def test_63b_the_service_of_one_type_never_has_clusters():
    stream = AdsStream(lambda: "n1", only_type=ENDPOINT)
    stream.set_snapshot(make_versions(**WORLD))
    request = discovery_pb2.DeltaDiscoveryRequest(initial_resource_versions={"A": "v1"})
    request.node.id = "e1"
    stream.receive(request)
    stream.responses(0.0)
    assert stream.next_deadline() is None


def test_63b_in_the_state_of_the_world_the_version_tells_a_reconnect():
    stream = AdsStream(lambda: "n1", STATE_OF_THE_WORLD)
    stream.set_snapshot(make_versions(**WORLD))
    request = discovery_pb2.DiscoveryRequest(
        type_url=ENDPOINT, resource_names=["A"], version_info="v1"
    )
    request.node.id = "e1"
    stream.receive(request)
    stream.responses(0.0)
    assert stream.next_deadline() == ORPHAN_S

"""Our own payload checks: each rule refuses its own mistake and names it."""

import pytest
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2

from control_plane.checks import check_resources
from control_plane.errors import PayloadError
from control_plane.resources import Resources, View, build_resources
from control_plane.snapshot import CLUSTER, ENDPOINT, TYPE_URLS, make_snapshot
from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry
from tests.support.xds import make_assignment, make_cluster

PLAN = make_plan(consul_entry("n1.e1"), consul_entry("n2.e1", port=9902, version="v2"))
EDGE = View(role="edge", listen_address="127.0.0.1", listen_port=10000)


def violations(cluster=None, assignment=None, **more):
    return check_resources(
        Resources(
            clusters=(cluster if cluster is not None else make_cluster(),),
            endpoints=(assignment if assignment is not None else make_assignment("A", 1),),
            **more,
        )
    )


def built(view=EDGE):
    return build_resources(PLAN, view)


def test_what_we_build_passes():
    assert check_resources(built()) == ()
    assert check_resources(built(View(role="node", node_id="n1"))) == ()
    assert violations() == ()


@pytest.mark.conformance("71")
def test_71_a_weight_below_1():
    (text,) = violations(assignment=make_assignment("A", 5, 0))
    assert "weight of unix:/run/1.sock is 0" in text


@pytest.mark.conformance("71")
def test_71_an_unset_weight_counts_as_1():
    assignment = make_assignment("A", 1)
    assignment.endpoints[0].lb_endpoints[0].ClearField("load_balancing_weight")
    assert violations(assignment=assignment) == ()


@pytest.mark.conformance("72")
def test_72_weights_that_leave_uint32():
    (text,) = violations(assignment=make_assignment("A", 2**32 - 1, 1))
    assert "sum to 4294967296" in text


@pytest.mark.conformance("72")
def test_72_locality_weights_that_leave_uint32():
    assignment = make_assignment("A", 1)
    assignment.endpoints[0].load_balancing_weight.value = 2**32 - 1
    other = assignment.endpoints.add()
    other.locality.zone = "b"
    other.load_balancing_weight.value = 1
    (text,) = violations(assignment=assignment)
    assert "locality weights" in text


@pytest.mark.conformance("73")
def test_73_a_split_without_weight():
    resources = built()
    routes = resources.routes[0]
    for route in routes.virtual_hosts[0].routes:
        for part in route.route.weighted_clusters.clusters:
            part.weight.value = 0
    found = check_resources(resources)
    assert found
    assert all("sum to 0" in text for text in found)


@pytest.mark.conformance("74")
def test_74_priorities_have_no_gap():
    assignment = make_assignment("A", 1)
    assignment.endpoints[0].priority = 1
    (text,) = violations(assignment=assignment)
    assert "priorities are [1]" in text


@pytest.mark.conformance("75")
def test_75_a_locality_twice_in_a_priority():
    assignment = make_assignment("A", 1)
    assignment.endpoints.add()
    (text,) = violations(assignment=assignment)
    assert "locality is given twice" in text


@pytest.mark.conformance("76")
def test_76_an_address_twice():
    (text,) = violations(assignment=make_assignment("A", 1, 1, path="/run/same.sock"))
    assert "unix:/run/same.sock is listed twice" in text


@pytest.mark.conformance("79")
def test_79_clusters_and_endpoints_belong_together():
    found = violations(assignment=make_assignment("B", 1))
    assert found == ("cluster 'A' has no endpoints", "endpoints 'B' have no cluster")


@pytest.mark.conformance("79")
def test_79_routes_need_their_clusters_and_listeners_their_routes():
    resources = built()
    bare = Resources(listeners=resources.listeners, routes=resources.routes)
    assert any("cluster 'acme_2Ffox' is missing" in text for text in check_resources(bare))
    lonely = Resources(listeners=resources.listeners)
    assert check_resources(lonely) == (
        "listener 'edge': routes 'edge' are missing",
        "listener 'edge': extension 'request-limits' is missing",
    )


@pytest.mark.conformance("57")
def test_57_endpoints_are_named_by_service_name():
    cluster = make_cluster()
    cluster.eds_cluster_config.service_name = "B"
    assert violations(cluster, make_assignment("B", 1)) == ()


@pytest.mark.case("B1")
@pytest.mark.parametrize(
    ("idle_s", "accepted"),
    [
        pytest.param(3, True, id="B1 Envoy first"),
        pytest.param(5, False, id="B1 at once"),
        pytest.param(10, False, id="B1 the engine first"),
        pytest.param(None, False, id="B1 unset: an hour in Envoy"),
    ],
)
def test_b1_envoy_closes_idle_connections_before_the_engine(idle_s, accepted):
    resources = built(View(role="node", node_id="n1"))
    cluster = next(c for c in resources.clusters if c.name == "acme_2Ffox")
    assert cluster.metadata.filter_metadata["wattmesh"]["keep_alive_s"] == 5
    set_idle_timeout(cluster, idle_s)
    found = check_resources(resources)
    assert (found == ()) is accepted
    assert all("idle_timeout" in text and "below the engine's 5 s" in text for text in found)


def set_idle_timeout(cluster, idle_s):
    name = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    options = http_protocol_options_pb2.HttpProtocolOptions()
    cluster.typed_extension_protocol_options[name].Unpack(options)
    options.common_http_protocol_options.ClearField("idle_timeout")
    if idle_s is not None:
        options.common_http_protocol_options.idle_timeout.FromSeconds(idle_s)
    cluster.typed_extension_protocol_options[name].Pack(options)


@pytest.mark.case("A1")
def test_a1_a_socket_path_that_envoy_would_refuse():
    (text,) = violations(assignment=make_assignment("A", 1, path="/" + "x" * 107))
    assert "108" in text


@pytest.mark.parametrize("field", ["max_connections", "max_pending_requests", "max_retries"])
def test_breakers_are_written_out(field):
    cluster = make_cluster()
    cluster.circuit_breakers.thresholds[1].ClearField(field)
    (text,) = violations(cluster)
    assert f"circuit-breaker {field} is unset" in text


def test_both_priorities_have_breakers_and_connections_a_time_out():
    cluster = make_cluster()
    del cluster.circuit_breakers.thresholds[1]
    cluster.ClearField("connect_timeout")
    found = violations(cluster)
    assert len(found) == 2


def test_a_name_twice():
    resources = Resources(
        clusters=(make_cluster(), make_cluster()), endpoints=(make_assignment("A", 1),)
    )
    assert check_resources(resources) == ("cluster 'A' is given twice",)


def test_a_snapshot_of_refused_resources_is_none_and_tells_all():
    cluster = make_cluster()
    cluster.ClearField("connect_timeout")
    resources = Resources(clusters=(cluster,), endpoints=(make_assignment("A", 0),))
    with pytest.raises(PayloadError) as error:
        make_snapshot(resources)
    assert len(error.value.violations) == 2


@pytest.mark.conformance("29")
@pytest.mark.conformance("80")
def test_29_80_equal_content_has_equal_versions_and_other_content_others():
    entries = [consul_entry("n1.e1"), consul_entry("n2.e1", port=9902, version="v2")]
    one, other = (
        make_snapshot(built()),
        make_snapshot(build_resources(make_plan(*entries[::-1]), EDGE)),
    )
    moved = make_plan(consul_entry("n1.e1", gpu_power="7"), entries[1])
    changed = make_snapshot(build_resources(moved, EDGE))
    for type_url in TYPE_URLS:
        assert versions(one, type_url) == versions(other, type_url)
    assert versions(one, CLUSTER) == versions(changed, CLUSTER)
    assert versions(one, ENDPOINT) != versions(changed, ENDPOINT)


def versions(snapshot, type_url):
    return {name: item.version for name, item in snapshot.of_type(type_url).items()}

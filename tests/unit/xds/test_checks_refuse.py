"""Payload checks at their edges: the last value that passes, the first that is refused, and why."""

import pytest
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)

from control_plane.checks import check_resources
from control_plane.resources import Resources
from tests.support.xds import make_assignment, make_cluster

UINT32_MAX = 2**32 - 1


def violations(cluster=None, assignment=None, **more):
    return check_resources(
        Resources(
            clusters=(cluster if cluster is not None else make_cluster(),),
            endpoints=(assignment if assignment is not None else make_assignment("A", 1),),
            **more,
        )
    )


def split(*weights):
    """Return routes that split over cluster A by these weights."""
    routes = route_pb2.RouteConfiguration(name="R")
    route = routes.virtual_hosts.add(name="R", domains=["*"]).routes.add()
    for weight in weights:
        part = route.route.weighted_clusters.clusters.add(name="A")
        part.weight.value = weight
    return routes


@pytest.mark.conformance("71")
def test_71_a_locality_weight_below_1():
    assignment = make_assignment("A", 1)
    assignment.endpoints[0].load_balancing_weight.value = 0
    (text,) = violations(assignment=assignment)
    assert "locality's weight is 0, expected at least 1" in text


@pytest.mark.conformance("72")
def test_72_the_largest_sum_passes():
    assert violations(assignment=make_assignment("A", UINT32_MAX - 1, 1)) == ()


@pytest.mark.conformance("73")
@pytest.mark.parametrize(
    ("weights", "accepted"),
    [
        pytest.param((0, 1), True, id="73 one of the parts has all"),
        pytest.param((0, 0), False, id="73 nobody has any"),
        pytest.param((UINT32_MAX,), True, id="73 the largest sum"),
        pytest.param((UINT32_MAX, 1), False, id="73 beyond uint32"),
    ],
)
def test_73_a_split_sums_to_1_up_to_uint32(weights, accepted):
    found = violations(routes=(split(*weights),))
    assert (found == ()) is accepted
    assert all(f"expected 1 to {UINT32_MAX}" in text for text in found)


@pytest.mark.conformance("74")
@pytest.mark.parametrize(
    ("priorities", "accepted"),
    [
        pytest.param(range(129), True, id="74 0 to 128"),
        pytest.param(range(130), False, id="74 129 is too high"),
        pytest.param((0, 2), False, id="74 a gap"),
    ],
)
def test_74_priorities_are_contiguous_up_to_128(priorities, accepted):
    assignment = make_assignment("A")
    for priority in priorities:
        assignment.endpoints.add(priority=priority)
    found = violations(assignment=assignment)
    assert (found == ()) is accepted
    assert all("expected 0 to 128 without a gap" in text for text in found)


@pytest.mark.conformance("75")
def test_75_locality_weighting_needs_a_weight_for_every_locality():
    cluster = make_cluster()
    cluster.common_lb_config.locality_weighted_lb_config.SetInParent()
    (text,) = violations(cluster)
    assert "endpoints 'A': a locality's weight is unset" in text
    assignment = make_assignment("A", 1)
    assignment.endpoints[0].load_balancing_weight.value = 1
    assert violations(cluster, assignment) == ()


@pytest.mark.conformance("77")
def test_77_all_or_none_of_the_endpoints_have_a_weight():
    assignment = make_assignment("A", 1, 1, 1)
    for host in assignment.endpoints[0].lb_endpoints:
        host.ClearField("load_balancing_weight")
    assert violations(assignment=assignment) == ()
    assignment.endpoints[0].lb_endpoints[1].load_balancing_weight.value = 3
    (text,) = violations(assignment=assignment)
    assert "1 of 3 endpoints have a weight, expected all or none" in text


@pytest.mark.conformance("79")
def test_79_a_single_route_and_a_default_filter_chain_refer_too():
    routes = route_pb2.RouteConfiguration(name="R")
    route = routes.virtual_hosts.add(name="R", domains=["*"]).routes.add()
    route.route.cluster = "B"
    manager = http_connection_manager_pb2.HttpConnectionManager()
    manager.rds.route_config_name = "S"
    listener = listener_pb2.Listener(name="L")
    listener.default_filter_chain.filters.add().typed_config.Pack(manager)
    assert violations(routes=(routes,), listeners=(listener,)) == (
        "routes 'R': cluster 'B' is missing",
        "listener 'L': routes 'S' are missing",
    )


@pytest.mark.case("B1")
@pytest.mark.parametrize("declared", [0.0, -1.0, float("nan"), "5s"], ids=repr)
def test_b1_a_keep_alive_that_is_no_time_is_refused(declared):
    cluster = make_cluster()
    cluster.metadata.filter_metadata["wattmesh"]["keep_alive_s"] = declared
    (text,) = violations(cluster)
    assert "metadata keep_alive_s is" in text


@pytest.mark.parametrize("name", ["", "*"], ids=repr)
def test_a_name_that_means_a_wildcard_is_refused(name):
    found = violations(make_cluster(name), make_assignment(name, 1))
    assert any(text.startswith(f"cluster {name!r}: the name is") for text in found)


@pytest.mark.parametrize(("size_bytes", "accepted"), [(107, True), (108, False)])
def test_a_socket_path_is_measured_in_bytes(size_bytes, accepted):
    path = "/" + "é" * ((size_bytes - 1) // 2) + "x" * ((size_bytes - 1) % 2)
    assert len(path.encode()) == size_bytes
    assert (violations(assignment=make_assignment("A", 1, path=path)) == ()) is accepted


def test_every_violation_is_told_at_once():
    cluster = make_cluster()
    cluster.connect_timeout.FromSeconds(0)
    cluster.circuit_breakers.thresholds[0].max_requests.value = 0
    cluster.circuit_breakers.thresholds[1].ClearField("max_retries")
    assert violations(cluster, make_assignment("A", 0), routes=(split(0),)) == (
        "cluster 'A': connect_timeout is 0 s, expected above 0",
        "cluster 'A': DEFAULT circuit-breaker max_requests is 0, expected at least 1",
        "cluster 'A': HIGH circuit-breaker max_retries is unset, expected at least 1",
        "endpoints 'A': the weight of unix:/run/0.sock is 0, expected at least 1",
        f"routes 'R': weights of A sum to 0, expected 1 to {UINT32_MAX}",
    )

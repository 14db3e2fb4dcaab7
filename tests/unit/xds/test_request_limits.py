"""The limiter's resources: what limits really limits, and edges that come touch endpoints alone."""

from dataclasses import replace

import pytest
from google.protobuf import json_format
from xds.type.v3 import typed_struct_pb2

from control_plane.resources import View, build_resources
from control_plane.resources.request_limits import EDGES
from control_plane.snapshot import ENDPOINT, EXTENSION, TYPE_URLS, make_snapshot
from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry

EDGE = View(role="edge", listen_address="127.0.0.1", listen_port=10000)


def plan_of(policy, *edges):
    return replace(make_plan(consul_entry("n1.e1"), policy=policy), edges=edges)


def limiter(plan):
    (extension,) = build_resources(plan, EDGE).extensions
    packed = typed_struct_pb2.TypedStruct()
    assert extension.typed_config.Unpack(packed)
    return json_format.MessageToDict(packed.value)


def changed_types(before, after):
    old, new = (make_snapshot(build_resources(plan, EDGE)) for plan in (before, after))
    return {
        kind
        for kind in TYPE_URLS
        if {n: r.version for n, r in old.of_type(kind).items()}
        != {n: r.version for n, r in new.of_type(kind).items()}
    }


LIMITED = "models: {acme/fox: {request_limit: {rate: 10/s, burst: 10}}}"


@pytest.mark.case("H1")
def test_h1_the_limiter_is_enabled_and_enforced_and_shares_among_edges():
    value = limiter(plan_of(LIMITED, "edge-1"))
    for field in ("filter_enabled", "filter_enforced"):
        assert value[field]["default_value"] == {"numerator": 100}
    assert value["local_cluster_rate_limit"] == {}
    (descriptor,) = value["descriptors"]
    assert descriptor["entries"] == [{"key": "model", "value": "acme/fox"}]
    assert descriptor["token_bucket"] == {
        "max_tokens": 10,
        "tokens_per_fill": 1,
        "fill_interval": "0.100000000s",
    }


def test_an_edge_that_comes_changes_the_edges_endpoints_alone():
    before, after = plan_of(LIMITED, "edge-1"), plan_of(LIMITED, "edge-1", "edge-2")
    assert changed_types(before, after) == {ENDPOINT}
    (edges,) = (a for a in build_resources(after, EDGE).endpoints if a.cluster_name == EDGES)
    paths = {host.endpoint.address.pipe.path for host in edges.endpoints[0].lb_endpoints}
    assert len(paths) == 2


def test_a_changed_limit_changes_the_limiter_alone():
    changed = LIMITED.replace("10/s", "20/s")
    assert changed_types(plan_of(LIMITED), plan_of(changed)) == {EXTENSION}
    assert changed_types(plan_of("{}"), plan_of(LIMITED)) == {EXTENSION}


def test_a_bucket_holds_a_whole_request_for_every_edge():
    small = LIMITED.replace("burst: 10", "burst: 1")
    edges = [f"edge-{i}" for i in range(4)]
    (descriptor,) = limiter(plan_of(small, *edges))["descriptors"]
    assert descriptor["token_bucket"]["max_tokens"] == 4

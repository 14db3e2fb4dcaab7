"""Versions follow content and nothing else; what stands in a snapshot cannot be changed."""

import random

import pytest
from envoy.config.endpoint.v3 import endpoint_pb2
from hypothesis import given
from hypothesis import strategies as st

from control_plane.resources import Resources
from control_plane.snapshot import CLUSTER, ENDPOINT, TYPE_URLS, make_snapshot
from tests.support.xds import make_assignment, make_cluster

NAMES = [f"p{number}" for number in range(8)]


def resources(names, keys=("a", "b", "c")):
    """Return pools in this order, each with metadata written in the order of `keys`."""
    clusters = []
    for name in names:
        cluster = make_cluster(name)
        for key in keys:
            cluster.metadata.filter_metadata["wattmesh"][key] = 1.0
            cluster.typed_extension_protocol_options[key].value = key.encode()
        clusters.append(cluster)
    return Resources(
        clusters=tuple(clusters), endpoints=tuple(make_assignment(name, 1) for name in names)
    )


@pytest.mark.conformance("80")
@given(st.permutations(NAMES), st.permutations(["a", "b", "c"]))
def test_80_the_same_input_in_any_order_gives_the_same_bytes(names, keys):
    one, other = make_snapshot(resources(NAMES)), make_snapshot(resources(names, keys))
    for type_url in TYPE_URLS:
        mine, theirs = one.of_type(type_url), other.of_type(type_url)
        assert list(mine) == list(theirs)
        for name in mine:
            assert mine[name].version == theirs[name].version
            assert mine[name].body.value == theirs[name].body.value


@pytest.mark.conformance("29")
def test_29_other_content_has_another_version():
    seen = set()
    for weight in random.Random(7).sample(range(1, 10_000), 500):
        item = Resources(clusters=(make_cluster(),), endpoints=(make_assignment("A", weight),))
        seen.add(make_snapshot(item).of_type(ENDPOINT)["A"].version)
    assert len(seen) == 500


@pytest.mark.conformance("54")
def test_54_a_pool_without_engines_is_an_explicitly_empty_assignment():
    item = Resources(clusters=(make_cluster(),), endpoints=(make_assignment("A"),))
    versioned = make_snapshot(item).of_type(ENDPOINT)["A"]
    assignment = endpoint_pb2.ClusterLoadAssignment()
    assert versioned.body.Unpack(assignment)
    assert (assignment.cluster_name, len(assignment.endpoints)) == ("A", 0)
    assert versioned.version


def test_a_snapshot_is_read_only():
    snapshot = make_snapshot(resources(NAMES))
    with pytest.raises(TypeError):
        snapshot.resources[CLUSTER] = {}
    with pytest.raises(TypeError):
        snapshot.of_type(CLUSTER)["p0"] = None

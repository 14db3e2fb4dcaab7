"""Thresholds travel in the runtime layer: engines come and go, and clusters stay as they are."""

import pytest
from google.protobuf import json_format

from control_plane.resources import View, build_resources
from control_plane.snapshot import CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME, make_snapshot
from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry

EDGE = View(role="edge", listen_address="127.0.0.1", listen_port=10000)
NODE = View(role="node", node_id="n1")


def engine(name, seqs="16", **meta):
    return consul_entry(f"n1.{name}", max_num_seqs=seqs, socket=f"/run/{name}.sock", **meta)


def layer(plan, view):
    (runtime,) = build_resources(plan, view).runtimes
    assert runtime.name == "wattmesh"
    return json_format.MessageToDict(runtime.layer)


def changed_types(before, after, view):
    old, new = (make_snapshot(build_resources(plan, view)) for plan in (before, after))
    kinds = {
        RUNTIME: "runtime",
        CLUSTER: "cluster",
        ENDPOINT: "endpoint",
        LISTENER: "listener",
        ROUTE: "route",
    }

    def versions(snapshot, kind):
        return {name: item.version for name, item in snapshot.of_type(kind).items()}

    return {name for kind, name in kinds.items() if versions(old, kind) != versions(new, kind)}


def test_a_nodes_layer_holds_the_sum_of_its_engines_of_a_pool():
    keys = layer(make_plan(engine("e0"), engine("e1")), NODE)
    cluster = "circuit_breakers.acme_2Ffox"
    assert keys[f"{cluster}.default.max_connections"] == 36
    assert keys[f"{cluster}.default.max_pending_requests"] == 36 * 5
    assert keys[f"{cluster}.default.retry_budget.min_retry_concurrency"] == 36
    assert keys[f"{cluster}.high.max_requests"] == 9
    assert len(keys) == 2 * 5


@pytest.mark.conformance("63")
def test_63_an_engine_of_the_pool_more_changes_no_pool_cluster():
    before, after = make_plan(engine("e0")), make_plan(engine("e0"), engine("e1"))

    def pool_cluster(plan):
        return next(c for c in build_resources(plan, NODE).clusters if c.name == "acme_2Ffox")

    assert pool_cluster(before) == pool_cluster(after)
    assert changed_types(before, after, EDGE) == {"endpoint"}


def test_a_larger_fleet_moves_runtime_and_endpoints_of_an_edge_alone():
    before = make_plan(engine("e0"))
    after = make_plan(*(engine(f"e{i}", "256") for i in range(40)))
    assert changed_types(before, after, EDGE) == {"endpoint", "runtime"}


def test_a_changed_queue_moves_the_runtime_alone():
    before = make_plan(engine("e0"))
    after = make_plan(engine("e0"), policy="defaults: {max_queue: 1.5}")
    assert changed_types(before, after, NODE) == {"runtime"}
    assert layer(after, NODE)["circuit_breakers.acme_2Ffox.default.max_pending_requests"] == 45

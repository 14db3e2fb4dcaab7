"""From two files to the plan and the resources, compared with what was reviewed before."""

import json
import os
from pathlib import Path

import pytest
from google.protobuf import json_format

from control_plane.catalog import parse_catalog
from control_plane.fleet import build_fleet
from control_plane.plan_view import plan_to_json
from control_plane.planner import plan_fleet
from control_plane.policy import parse_policy
from control_plane.resources import View, build_resources
from control_plane.snapshot import make_snapshot
from engines.gpu import load_gpu_table

GOLDEN = Path(__file__).parent
EDGE = View(role="edge", listen_address="127.0.0.1", listen_port=10000)
NODE_A = View(role="node", node_id="node-a")


def plan_of(case):
    folder = GOLDEN / case
    catalog = parse_catalog((folder / "catalog.json").read_bytes(), source="catalog.json")
    policy = parse_policy((folder / "policy.yaml").read_bytes(), source="policy.yaml")
    return plan_fleet(build_fleet(catalog, load_gpu_table()), policy, 0.0)


def compare(path, value):
    text = json.dumps(value, indent=2, sort_keys=True) + "\n"
    if os.environ.get("WATTMESH_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("case", ["two-nodes", "mixed-fleet"])
def test_plan(case):
    compare(GOLDEN / case / "plan.json", plan_to_json(plan_of(case)))


@pytest.mark.parametrize(("view", "name"), [(EDGE, "edge"), (NODE_A, "node-a")])
def test_resources_of_two_nodes(view, name):
    resources = build_resources(plan_of("two-nodes"), view)
    make_snapshot(resources)  # our own checks accept them
    value = {
        kind: [json_format.MessageToDict(m, preserving_proto_field_name=True) for m in messages]
        for kind, messages in (
            ("clusters", resources.clusters),
            ("endpoints", resources.endpoints),
            ("listeners", resources.listeners),
            ("routes", resources.routes),
            ("runtimes", resources.runtimes),
            ("extensions", resources.extensions),
        )
    }
    compare(GOLDEN / "two-nodes" / f"{name}.json", value)

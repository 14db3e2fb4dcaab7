"""Fleets and plans for tests, through the real parsers: what a test states is what Consul said."""

from collections.abc import Mapping
from typing import Any

from control_plane.catalog import parse_catalog
from control_plane.fleet import Fleet, build_fleet
from control_plane.plan import Plan
from control_plane.planner import plan_fleet
from control_plane.policy import parse_policy
from engines.gpu import load_gpu_table
from tests.support.consul_json import consul_answer

GPUS = load_gpu_table()


def make_fleet(*entries: Mapping[str, Any]) -> Fleet:
    """Return the fleet of these Consul entries."""
    return build_fleet(parse_catalog(consul_answer(*entries), source="test"), GPUS)


def make_plan(*entries: Mapping[str, Any], policy: str = "{}") -> Plan:
    """Return the plan of these Consul entries under a policy in YAML."""
    return plan_fleet(make_fleet(*entries), parse_policy(policy.encode(), source="test"), 0.0)

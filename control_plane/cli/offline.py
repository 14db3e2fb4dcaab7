"""Commands that need no network: a recorded catalog and a policy in, a plan or resources out."""

import time
from pathlib import Path
from typing import Any

from control_plane.catalog import Catalog, parse_catalog
from control_plane.catalog_files import read_file
from control_plane.errors import InputError, Problem
from control_plane.fleet import Fleet, build_fleet
from control_plane.plan import Plan
from control_plane.planner import plan_fleet
from control_plane.policy import Policy, parse_policy
from engines.gpu import load_gpu_table

NOTHING_STARTED = "nothing is started"
_NOTHING_PLANNED = "nothing is planned"
_EDGE_LISTENER = ("127.0.0.1", 10000)  # of the edge whose resources are shown offline


def load_plan(catalog: Path, policy: Path | None) -> Plan:
    """Return the plan of two files. Raise InputError with the problems of both at once."""
    fleet, parsed_policy = load_inputs(catalog, policy)
    return plan_fleet(fleet, parsed_policy, time.time())


def load_inputs(catalog: Path, policy: Path | None) -> tuple[Fleet, Policy]:
    """Return what a plan is made of. Raise InputError with the problems of both files at once."""
    problems: list[Problem] = []
    parsed_catalog = parsed_policy = None
    try:
        parsed_catalog = load_catalog(catalog, meanwhile=_NOTHING_PLANNED)
    except InputError as error:
        problems += error.problems
    try:
        parsed_policy = load_policy(policy, meanwhile=_NOTHING_PLANNED)
    except InputError as error:
        problems += error.problems
    if parsed_catalog is None or parsed_policy is None:
        raise InputError(problems)
    return build_fleet(parsed_catalog, load_gpu_table()), parsed_policy


def load_plans(*inputs: tuple[Path, Path | None]) -> list[Plan]:
    """Return the plans of pairs of files. Raise InputError with the problems of all at once."""
    plans: list[Plan] = []
    problems: dict[Problem, None] = {}  # a file may be of several pairs
    for catalog, policy in inputs:
        try:
            plans.append(load_plan(catalog, policy))
        except InputError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise InputError(problems)
    return plans


def load_catalog(path: Path, *, meanwhile: str) -> Catalog:
    """Return the catalog of a file."""
    source = str(path)
    return read_file(path, lambda data: parse_catalog(data, source=source), meanwhile=meanwhile)


def load_policy(path: Path | None, *, meanwhile: str) -> Policy:
    """Return the policy of a file; without one, the empty policy."""
    if path is None:
        return Policy()
    source = str(path)
    return read_file(path, lambda data: parse_policy(data, source=source), meanwhile=meanwhile)


def resources_json(plan: Plan, role: str, node_id: str) -> dict[str, list[Any]]:
    """Return what an Envoy is sent, by type URL, as proto3 JSON in Envoy's own spelling."""
    from google.protobuf import json_format  # noqa: PLC0415

    from control_plane.resources import build_resources  # noqa: PLC0415
    from control_plane.snapshot import messages_by_type  # noqa: PLC0415

    resources = build_resources(plan, _view(role, node_id))
    return {
        type_url: [
            json_format.MessageToDict(message, preserving_proto_field_name=True)
            for message in messages
        ]
        for type_url, messages in messages_by_type(resources).items()
    }


def payload_violations(plan: Plan) -> list[str]:
    """Return what our own payload checks refuse, for the edge and for every node."""
    from control_plane.checks import check_resources  # noqa: PLC0415
    from control_plane.resources import build_resources  # noqa: PLC0415

    envoys = [("edge", ""), *(("node", node.id) for node in plan.nodes)]
    return [
        f"{role} {node_id}".strip() + f": {violation}"
        for role, node_id in envoys
        for violation in check_resources(build_resources(plan, _view(role, node_id)))
    ]


def edge_view() -> Any:
    """Return the view of the edge that is shown offline."""
    from control_plane.resources import View  # noqa: PLC0415

    address, port = _EDGE_LISTENER
    return View(role="edge", listen_address=address, listen_port=port)


def _view(role: str, node_id: str) -> Any:
    from control_plane.resources import View  # noqa: PLC0415

    if role == "node":
        return View(role="node", node_id=node_id)
    return edge_view()

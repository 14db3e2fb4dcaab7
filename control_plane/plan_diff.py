"""What a changed catalog or policy would move: engines, pools, and the resources pushed for it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from control_plane.plan import Plan
from control_plane.plan_view import plan_to_json
from control_plane.resources import View, build_resources
from control_plane.snapshot import TYPE_URLS, make_snapshot

_ENGINE_FIELDS = ("state", "gpu_power", "capacity", "weight", "share", "max_connections")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One value that would move. None = it is not there on that side."""

    kind: str  # engine, model, pool, setting
    name: str
    field: str
    before: Any
    after: Any


def diff_plans(before: Plan, after: Plan) -> tuple[Change, ...]:
    """Return every difference between two plans that an operator or a caller could notice."""
    old, new = plan_to_json(before), plan_to_json(after)
    return (
        *_diff("engine", _by(old["engines"], "id"), _by(new["engines"], "id"), _ENGINE_FIELDS),
        *_diff(
            "model",
            _by(old["models"], "model"),
            _by(new["models"], "model"),
            ("balance", "generation_timeout_s", "request_limit", "live", "versions"),
        ),
        *_diff(
            "pool",
            _by(old["pools"], "cluster"),
            _by(new["pools"], "cluster"),
            ("slow_start_s", "max_queue", "edge_thresholds"),
        ),
        *_settings(before, after),
        *_fleet_limit(old["request_limit"], new["request_limit"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """How many resources of one type an Envoy would be sent, or told to remove."""

    envoy: str  # "edge", or the node's ID
    type: str  # e.g. "ClusterLoadAssignment"
    changed: int
    removed: int


def pushes(before: Plan, after: Plan, edge: View) -> tuple[Push, ...]:
    """Return what each kind of Envoy would be sent: one edge, and every node of either plan."""
    nodes = sorted({node.id for plan in (before, after) for node in plan.nodes})
    views = [("edge", edge), *((node, View(role="node", node_id=node)) for node in nodes)]
    return tuple(push for name, view in views for push in _pushes(before, after, name, view))


def _pushes(before: Plan, after: Plan, name: str, view: View) -> Iterator[Push]:
    old, new = (make_snapshot(build_resources(plan, view)) for plan in (before, after))
    for type_url in TYPE_URLS:
        had, has = old.of_type(type_url), new.of_type(type_url)
        changed = sum(
            1 for key, item in has.items() if key not in had or had[key].version != item.version
        )
        removed = len(had.keys() - has.keys())
        if changed or removed:
            kind = type_url.rpartition(".")[2]
            yield Push(envoy=name, type=kind, changed=changed, removed=removed)


def _by(items: Iterable[Mapping[str, Any]], key: str) -> dict[str, Mapping[str, Any]]:
    return {str(item[key]): item for item in items}


def _diff(
    kind: str,
    old: Mapping[str, Mapping[str, Any]],
    new: Mapping[str, Mapping[str, Any]],
    fields: tuple[str, ...],
) -> Iterator[Change]:
    for name in sorted({*old, *new}):
        for field in fields:
            before = old.get(name, {}).get(field)
            after = new.get(name, {}).get(field)
            if before != after:
                yield Change(kind=kind, name=name, field=field, before=before, after=after)


def _fleet_limit(before: Any, after: Any) -> Iterator[Change]:
    if before != after:
        yield Change(
            kind="setting", name="policy", field="request_limit", before=before, after=after
        )


def _settings(before: Plan, after: Plan) -> Iterator[Change]:
    for field in ("max_request_bytes", "retry_after_s"):
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            yield Change(kind="setting", name="policy", field=field, before=old, after=new)

"""`explain` and `diff`: why a weight is what it is, and what a change would move."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from control_plane.addresses import HostPort, UnixSocket
from control_plane.cli.admin_client import ask_admin
from control_plane.cli.offline import edge_view, load_inputs, load_plans
from control_plane.cli.output import Output, print_data, print_problems, print_table
from control_plane.errors import WattmeshError
from control_plane.explain import explain
from control_plane.plan_diff import Change, diff_plans, pushes
from control_plane.planner import plan_fleet


def print_explanation(subject: str, catalog: Path, policy: Path | None, output: Output) -> None:
    """Print every step of the arithmetic of a model's engines, or of one engine."""
    fleet, parsed_policy = load_inputs(catalog, policy)
    plan = plan_fleet(fleet, parsed_policy, time.time())
    found = explain(fleet, parsed_policy, plan, subject)
    if not found:
        known = sorted({model.model for model in plan.models} | {e.id for e in plan.engines})
        raise WattmeshError(
            f"{subject!r}: expected a model or an engine of the catalog: "
            f"{', '.join(known[:20]) or 'it has none'}"
        )
    print_problems(str(problem) for problem in plan.problems)
    _print_steps([asdict(item) for item in found], output)


def print_live_explanation(
    subject: str, address: UnixSocket | HostPort, tls_dir: Path | None, output: Output
) -> None:
    """Print the same of a running control plane."""
    path = f"/v1/explain/{quote(subject)}"
    (found,) = asyncio.run(ask_admin(address, path, tls_dir=tls_dir))
    if not isinstance(found, list):
        raise WattmeshError(found["error"]["message"])
    _print_steps(found, output)


def _print_steps(found: Sequence[Mapping[str, Any]], output: Output) -> None:
    if output is not Output.TABLE:
        print_data(list(found), output)
        return
    for item in found:
        title = f"{item['engine']} ({item['model']})"
        rows = [[step["what"], step["value"], step["how"]] for step in item["steps"]]
        print_table(title, ("step", "value", "how"), rows)
        print_table("", (), [])


def print_diff(
    before: tuple[Path, Path | None], after: tuple[Path, Path | None], output: Output
) -> bool:
    """Print what would move between two pairs of catalog and policy; return whether anything."""
    old, new = load_plans(before, after)
    changes, sent = diff_plans(old, new), pushes(old, new, edge_view())
    if output is Output.TABLE:
        print_table("", ("kind", "name", "field", "before", "after"), map(_row, changes))
        rows = [[push.envoy, push.type, str(push.changed), str(push.removed)] for push in sent]
        print_table("\nResources pushed", ("Envoy", "type", "changed", "removed"), rows)
    else:
        value = {
            "changes": [asdict(change) for change in changes],
            "pushes": [asdict(push) for push in sent],
        }
        print_data(value, output)
    return bool(changes or sent)


def _row(change: Change) -> list[str]:
    return [change.kind, change.name, change.field, _text(change.before), _text(change.after)]


def _text(value: Any) -> str:
    return "-" if value is None else str(value)

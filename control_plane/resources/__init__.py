"""A plan in Envoy's words: listeners, routes, clusters and endpoints for one Envoy.

Pure: equal plans and views give equal bytes. Only endpoints depend on weights and health, so that
a change of power or health moves EDS alone: a changed cluster would warm again, and a changed
listener would cut long streams.
"""

from control_plane.plan import Plan
from control_plane.resources.edge import build_edge
from control_plane.resources.memo import Memo
from control_plane.resources.node import build_node
from control_plane.resources.parts import PlanParts
from control_plane.resources.view import Resources, View, parse_view

__all__ = ["Memo", "PlanParts", "Resources", "View", "build_resources", "parse_view"]


def build_resources(plan: Plan, view: View, memo: Memo | None = None) -> Resources:
    """Return what one Envoy is shown of a plan. A node that the plan does not know gets nothing.

    With a memo, what did not change since it was built last is the same message again.
    """
    if view.role == "edge":
        return build_edge(plan, view, memo or Memo())
    return build_node(plan, view)

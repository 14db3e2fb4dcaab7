"""Rendering plans for views, again and again: what did not change is not made again."""

from control_plane.plan import Plan
from control_plane.resources import Memo, PlanParts, View, build_resources
from control_plane.snapshot import Snapshot, SnapshotMaker


class Renderer:
    """Makes the snapshots of all views; holds what the last ones were made of."""

    def __init__(self) -> None:
        self._memo = Memo()
        self._makers: dict[View, SnapshotMaker] = {}
        self.part = PlanParts()  # what a view's snapshot depends on

    def render(self, plan: Plan, view: View) -> Snapshot:
        """Return a view's snapshot. Raise PayloadError when our own checks refuse it."""
        maker = self._makers.setdefault(view, SnapshotMaker())
        return maker.make(build_resources(plan, view, self._memo))

    def drop(self, view: View) -> None:
        """Forget a view that nobody asks for any more."""
        self._makers.pop(view, None)

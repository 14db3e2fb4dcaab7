"""The snapshots in force, rendered once per view and plan, and the bell that rings on a new one.

A view whose resources our own checks refuse keeps its last good snapshot; the other views move on.
"""

import asyncio
from collections.abc import Callable

import structlog

from control_plane.errors import PayloadError
from control_plane.metrics import Metrics
from control_plane.plan import Plan
from control_plane.resources import View
from control_plane.snapshot import Snapshot

logger = structlog.get_logger()

Render = Callable[[Plan, View], Snapshot]


class SnapshotStore:
    """Holds the plan in force and its renderings. Used from one event loop."""

    def __init__(self, render: Render, metrics: Metrics) -> None:
        self._render = render
        self._metrics = metrics
        self._plan: Plan | None = None
        self._rendered: dict[View, Snapshot] = {}  # of the plan in force
        self._last_good: dict[View, Snapshot] = {}
        self._changed = asyncio.Event()
        self.refused: dict[View, tuple[str, ...]] = {}  # violations of the plan in force

    @property
    def plan(self) -> Plan | None:
        """The plan in force; None until the first complete read of the catalog."""
        return self._plan

    def publish(self, plan: Plan) -> None:
        """Put a plan in force and wake every stream. An equal plan changes nothing."""
        if plan == self._plan:
            return
        self._plan = plan
        self._rendered.clear()
        self.refused.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    def snapshot(self, view: View) -> Snapshot | None:
        """Return what a view is served: the plan in force, or the view's last good snapshot.

        None while nothing can be served to it.
        """
        if self._plan is None:
            return None
        if view not in self._rendered and view not in self.refused:
            try:
                self._rendered[view] = self._render(self._plan, view)
            except PayloadError as error:
                self._refuse(view, error)
            else:
                self._last_good[view] = self._rendered[view]
        return self._rendered.get(view) or self._last_good.get(view)

    def forget(self, view: View) -> None:
        """Drop a view that no stream uses any more, so that departed Envoys leave nothing."""
        for cache in (self._rendered, self._last_good, self.refused):
            cache.pop(view, None)

    def bell(self) -> asyncio.Event:
        """Return the event that is set by the next `publish`."""
        return self._changed

    def _refuse(self, view: View, error: PayloadError) -> None:
        self.refused[view] = error.violations
        self._metrics.payload_refused.labels(view.role).inc()
        logger.error(
            "resources refused by our own checks, the last good ones stay in force",
            role=view.role,
            node=view.node_id,
            violations=error.violations,
        )

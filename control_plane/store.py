"""The snapshots in force, rendered once per view and change, and the bell that rings on a new one.

A view whose resources our own checks refuse keeps its last good snapshot; the other views move on.
What is refused is logged when it changes, not with every plan.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

import structlog

from control_plane.errors import PayloadError
from control_plane.metrics import Metrics
from control_plane.plan import Plan
from control_plane.quarantine import Quarantine, Refusal
from control_plane.resources import View
from control_plane.snapshot import Snapshot, VersionedResource
from control_plane.stream import Nacked

logger = structlog.get_logger()

Render = Callable[[Plan, View], Snapshot]
Part = Callable[[Plan, View], object]  # what a view's rendering depends on, to compare

_MAX_SHOWN = 20  # violations in one log line
_MAX_DEPARTED = 256  # refused views without a stream whose last good snapshot is kept


class Store(Protocol):
    """What streams are served from."""

    @property
    def unready(self) -> str | None:
        """Why nothing can be served yet to anybody; None once it can."""

    def snapshot(self, view: View) -> Snapshot | None:
        """Return what a view is served; None while nothing can be served to it."""

    def bell(self) -> asyncio.Event:
        """Return the event that is set when there is news."""

    def note_acked(self, view: View, type_url: str, taken: Iterable[VersionedResource]) -> None:
        """Take note of what an Envoy took."""

    def note_refused(self, view: View, event: Nacked, *, node: str, at_s: float) -> None:
        """Take note of what an Envoy refused."""

    def forget(self, view: View) -> None:
        """Take note that no stream uses a view any more."""


class SnapshotStore:
    """Holds the plan in force and its renderings. Used from one event loop."""

    def __init__(
        self,
        render: Render,
        metrics: Metrics,
        part: Part = lambda plan, _view: plan,
        on_drop: Callable[[View], None] = lambda _view: None,
    ) -> None:
        self._render = render
        self._part = part
        self._on_drop = on_drop
        self._parts: dict[View, object] = {}  # that the last good snapshots were rendered from
        self._metrics = metrics
        self._plan: Plan | None = None
        self._rendered: dict[View, Snapshot] = {}  # of the plan in force
        self._last_good: dict[View, Snapshot] = {}
        self._departed: dict[View, None] = {}  # without a stream, oldest first
        self._changed = asyncio.Event()
        self._noted: dict[View, tuple[str, ...]] = {}  # violations that were logged last
        self.refused: dict[View, tuple[str, ...]] = {}  # violations of the plan in force
        self._quarantine = Quarantine()
        self._served: dict[View, Snapshot] = {}  # of the plan in force, without refused contents

    @property
    def plan(self) -> Plan | None:
        """The plan in force; None until the first complete read of the catalog."""
        return self._plan

    @property
    def unready(self) -> str | None:
        """Why nothing is served yet; None once a plan is in force."""
        return "the catalog was not read completely yet" if self._plan is None else None

    def publish(self, plan: Plan) -> None:
        """Put a plan in force and wake every stream. An equal plan changes nothing."""
        if plan == self._plan:
            return
        self._plan = plan
        self._rendered.clear()
        self.refused.clear()
        self._ring()

    def snapshot(self, view: View) -> Snapshot | None:
        """Return what a view is served: the plan in force, or the view's last good snapshot.

        None while nothing can be served to it.
        """
        if self._plan is None:
            return None
        self._departed.pop(view, None)
        if view not in self._rendered and view not in self.refused:
            self._render_view(self._plan, view)
        if view not in self._served:
            snapshot = self._rendered.get(view) or self._last_good.get(view)
            if snapshot is None:
                return None
            self._served[view] = self._quarantine.serve(view, snapshot)
        return self._served[view]

    @property
    def quarantined(self) -> tuple[Refusal, ...]:
        """The contents that are sent to nobody, because an Envoy refused them."""
        return self._quarantine.refusals

    def note_acked(self, view: View, type_url: str, taken: Iterable[VersionedResource]) -> None:
        """Record what an Envoy took: the form to fall back to."""
        lifted = self._quarantine.note_acked(view, type_url, taken)
        if lifted:
            logger.info("content taken after all", resources=[item.name for item in lifted])
            self._show_quarantine()

    def note_refused(self, view: View, event: Nacked, *, node: str, at_s: float) -> None:
        """Record what an Envoy refused: nobody of its view is sent it again."""
        added = self._quarantine.note_refused(view, event, node=node, at_s=at_s)
        for item in added:
            logger.error(
                "content quarantined, its last acknowledged form is served to everyone",
                type=item.type_url.rpartition(".")[2],
                name=item.name,
                version=item.version,
                node=item.node,
                reason=item.message,
            )
        if added:
            self._show_quarantine()

    def _show_quarantine(self) -> None:
        self._metrics.xds_quarantined.set(len(self._quarantine.refusals))
        self._ring()

    def _ring(self) -> None:
        self._served.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    def forget(self, view: View) -> None:
        """Drop a view that no stream uses any more, so that departed Envoys leave nothing.

        What can be rendered again is dropped at once. The last good snapshot of a view that is
        refused now cannot, and its Envoy may only be restarting: of those a bounded number stays.
        """
        self._quarantine.forget(view)
        if view not in self.refused:
            self._drop(view)
            return
        self._departed[view] = None
        while len(self._departed) > _MAX_DEPARTED:
            self._drop(next(iter(self._departed)))

    def bell(self) -> asyncio.Event:
        """Return the event that is set by the next `publish`."""
        return self._changed

    def _drop(self, view: View) -> None:
        self._departed.pop(view, None)
        self._rendered.pop(view, None)
        self._last_good.pop(view, None)
        self._parts.pop(view, None)
        self._served.pop(view, None)
        self._on_drop(view)
        self._noted.pop(view, None)
        self.refused.pop(view, None)

    def _render_view(self, plan: Plan, view: View) -> None:
        part = self._part(plan, view)
        if view in self._parts and self._parts[view] == part and view not in self._noted:
            self._rendered[view] = self._last_good[view]
            return
        try:
            snapshot = self._render(plan, view)
        except PayloadError as error:
            self._refuse(view, error.violations)
            return
        self._rendered[view] = self._last_good[view] = snapshot
        self._parts[view] = part
        if self._noted.pop(view, None) is not None:
            logger.info("resources accepted again", role=view.role, node=view.node_id)

    def _refuse(self, view: View, violations: tuple[str, ...]) -> None:
        self.refused[view] = violations
        self._metrics.payload_refused.labels(view.role).inc()
        if self._noted.get(view) == violations:
            return
        self._noted[view] = violations
        logger.error(
            "resources refused by our own checks, the last good ones stay in force",
            role=view.role,
            node=view.node_id,
            violations=violations[:_MAX_SHOWN],
            count=len(violations),
        )

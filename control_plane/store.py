"""The snapshots in force, rendered once per view and change, and the bell that rings on a new one.

A view whose resources our own checks refuse keeps its last good snapshot; the other views move on.
What is refused is logged when it changes, not with every plan. What stands between a rendering and
an Envoy: the quarantine, which replaces what was refused, then the canary gate.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol

import structlog

from control_plane.canary import Canary
from control_plane.canary_wave import ACKNOWLEDGED, Envoy, Hold, Released
from control_plane.errors import PayloadError
from control_plane.metrics import Metrics
from control_plane.plan import Plan
from control_plane.quarantine import Quarantine, Refusal, is_own_fault
from control_plane.resources import View
from control_plane.snapshot import Snapshot, VersionedResource
from control_plane.stream import Nacked

logger = structlog.get_logger()

Render = Callable[[Plan, View], Snapshot]
Part = Callable[[Plan, View], object]  # what a view's rendering depends on, to compare

_MAX_SHOWN = 20  # violations, contents or nodes in one log line
_MAX_DEPARTED = 256  # refused views without a stream whose last good snapshot is kept


class Store(Protocol):
    """What streams are served from. One that inherits this has no canaries."""

    envoys: Callable[[str], Iterable[Envoy]]  # of a role, that may try changes first
    on_cleared: Callable[[tuple[Refusal, ...]], None]  # content that was refused is offered again

    @property
    def unready(self) -> str | None:
        """Why nothing can be served yet to anybody; None once it can."""

    def snapshot(self, view: View, node: str = "") -> Snapshot | None:
        """Return what a view, or an Envoy of it, is served; None while nothing can be served."""

    def next_deadline(self, _view: View) -> float | None:
        """Return when a view's Envoys are to look again even if the bell does not ring."""
        return None

    def awaits(self, _view: View, _node: str) -> bool:
        """Whether other Envoys wait for what this one says to a change."""
        return False

    def concerns(self, _view: View, _node: str) -> bool:
        """Whether an Envoy tries a change for others, or waits for them."""
        return False

    def note_proven(self, view: View, node: str) -> None:
        """Take note that an Envoy took all that it was sent of a change."""

    def note_unfit(self, view: View, node: str) -> None:
        """Take note that an Envoy is gone, or refused something for a reason of its own."""

    def bell(self) -> asyncio.Event:
        """Return the event that is set when there is news."""

    def note_acked(self, view: View, type_url: str, taken: Iterable[VersionedResource]) -> None:
        """Take note of what an Envoy took."""

    def note_refused(self, view: View, event: Nacked, *, node: str, at_s: float) -> None:
        """Take note of what an Envoy refused."""

    def forget(self, view: View) -> None:
        """Take note that no stream uses a view any more."""


class SnapshotStore(Store):
    """Holds the plan in force and its renderings. Used from one event loop."""

    def __init__(
        self,
        render: Render,
        metrics: Metrics,
        part: Part = lambda plan, _view: plan,
        on_drop: Callable[[View], None] = lambda _view: None,
        clock: Callable[[], float] = time.monotonic,
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
        self._clock = clock
        self.on_cleared: Callable[[tuple[Refusal, ...]], None] = lambda _refusals: None
        self.envoys: Callable[[str], Iterable[Envoy]] = lambda _role: ()  # that may be canaries
        self._canary = Canary(self._candidates, self._newest)
        for role in ("edge", "node"):
            held = partial(self._canary.waiting, role)
            metrics.xds_canary_held.labels(role).set_function(held)

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

    def snapshot(self, view: View, node: str = "") -> Snapshot | None:
        """Return what a view is served: the plan in force, or the view's last good snapshot.

        A connected Envoy gives its node ID: while a change is tried by others, it is served the
        form of before. None while nothing can be served to the view.
        """
        newest = self._newest(view)
        if newest is None:
            return None
        spoken = self._canary.spoken_for(view, newest)
        if spoken:
            newest = self._extend_quarantine(view, newest, spoken)
        now = self._clock()
        served = (
            self._canary.serve(view, node, newest, now)
            if node
            else self._canary.peek(view, newest, now)
        )
        self._tell_canary()
        return served

    def _newest(self, view: View) -> Snapshot | None:
        """Return what a view is served once nothing is held back from it."""
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

    def _candidates(self, role: str) -> Iterable[Envoy]:
        return self.envoys(role)

    @property
    def held(self) -> tuple[Hold, ...]:
        """The changes that wait for their canaries; `since` in seconds since the epoch."""
        began = time.time() - self._clock()
        return tuple(replace(hold, since=began + hold.since) for hold in self._canary.holds())

    def next_deadline(self, view: View) -> float | None:
        """Return when a view's Envoys are to look again even if the bell does not ring."""
        return self._canary.next_deadline(view.role)

    def awaits(self, view: View, node: str) -> bool:
        """Whether other Envoys wait for what this one says to a change."""
        return self._canary.awaits(view, node)

    def concerns(self, view: View, node: str) -> bool:
        """Whether an Envoy tries a change for others, or waits for them."""
        return self._canary.concerns(view, node)

    def note_proven(self, view: View, node: str) -> None:
        """Record that an Envoy took all that it was sent of a change."""
        self._canary.note_proven(view, node)
        self._tell_canary()

    def note_unfit(self, view: View, node: str) -> None:
        """Record that an Envoy is gone, or refused something for a reason of its own."""
        if self._canary.note_unfit(view, node):
            self._wake()
        self._tell_canary()

    def _tell_canary(self) -> None:
        """Log, count and wake for what the gate decided."""
        for item in self._canary.take_news():
            shown = _shown(item.hold)
            if not isinstance(item, Released):
                logger.info("changed configuration goes to canaries first", **shown)
                continue
            waiting, after_s = len(item.hold.waiting), self._clock() - item.hold.since
            ended = {"reason": item.reason, "waiting": waiting, "after_s": round(after_s, 3)}
            if not waiting:
                logger.info("changed configuration waits for no canary any more", **shown, **ended)
            elif item.reason == ACKNOWLEDGED:
                logger.info("changed configuration goes to everyone", **shown, **ended)
            else:
                logger.warning("changed configuration goes to everyone", **shown, **ended)
            self._metrics.xds_canary_releases.labels(item.reason.replace(" ", "_")).inc()
            self._wake()

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
        before = self._canary.before(view)
        if before is not None:
            self._quarantine.note_served(view, before)
        added = self._quarantine.note_refused(view, event, node=node, at_s=at_s)
        _log_quarantined(added)
        self._canary.note_refused(view, node, added)
        if added:
            self._show_quarantine()
        elif is_own_fault(event.message):
            self.note_unfit(view, node)

    def clear_quarantine(self, version: str | None) -> tuple[Refusal, ...]:
        """Offer a quarantined version again, or all of them with None; return what was lifted."""
        lifted = self._quarantine.clear(version)
        if lifted:
            names = [item.name for item in lifted[:_MAX_SHOWN]]
            logger.warning("quarantine cleared by hand", version=version or "all", resources=names)
            self._canary.note_cleared(lifted)
            self.on_cleared(lifted)
            self._show_quarantine()
        return lifted

    def _extend_quarantine(
        self, view: View, newest: Snapshot, refusals: tuple[tuple[Refusal, str], ...]
    ) -> Snapshot:
        """Put what a view would get of a content that a canary refused beside it."""
        before = self._canary.before(view)
        if before is not None:
            self._quarantine.note_served(view, before)
        added = self._quarantine.extend(view, refusals)
        if not added:
            return newest
        _log_quarantined(added)
        self._metrics.xds_quarantined.set(len(self._quarantine.refusals))
        self._served.pop(view, None)
        return self._newest(view) or newest

    def _show_quarantine(self) -> None:
        self._metrics.xds_quarantined.set(len(self._quarantine.refusals))
        self._ring()

    def _ring(self) -> None:
        self._served.clear()
        self._canary.note_change()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def forget(self, view: View) -> None:
        """Drop a view that no stream uses any more, so that departed Envoys leave nothing.

        What can be rendered again is dropped at once. The last good snapshot of a view that is
        refused now cannot, and its Envoy may only be restarting: of those a bounded number stays.
        """
        self._quarantine.forget(view)
        self._canary.forget(view)
        if view not in self.refused:
            self._drop(view)
            return
        self._departed[view] = None
        while len(self._departed) > _MAX_DEPARTED:
            self._drop(next(iter(self._departed)))

    def bell(self) -> asyncio.Event:
        """Return the event that is set when there may be something new to serve."""
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


def _log_quarantined(added: Iterable[Refusal]) -> None:
    for item in added:
        logger.error(
            "content quarantined, its last acknowledged form is served to everyone",
            type=item.type_url.rpartition(".")[2],
            name=item.name,
            version=item.version,
            node=item.node,
            reason=item.message,
        )


def _shown(hold: Hold) -> dict[str, object]:
    contents = [f"{url.rpartition('.')[2]} {name}" for url, name, _ in hold.contents[:_MAX_SHOWN]]
    return {"role": hold.role, "canaries": list(hold.canaries), "contents": contents}

"""Changed clusters, listeners and routes go to a few Envoys first, and after their ACK to all.

Each role has a gate. A plan that changes these types for more than one connected Envoy of the role
opens a wave: a few of those affected, chosen by the hash of their node ID, are served the change;
the others keep the form of before until the canaries took everything, or until BOUND_S is over,
since a silent Envoy must not block the configuration. A refusal is what holds: the store puts the
content into quarantine, and what stands in its place for each of the canary's mates.

What needs no canary: an Envoy's first snapshot, an Envoy that is alone, and a change that concerns
one Envoy. What wakes the Envoys is the store's; this is a value over time, without I/O.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from control_plane.canary_forms import Content, changed_contents, held_form, is_changed
from control_plane.canary_wave import (
    ACKNOWLEDGED,
    NOBODY_LEFT,
    TIMED_OUT,
    Envoy,
    Held,
    Hold,
    News,
    Released,
    Wave,
    canaries_of,
    rank,
)
from control_plane.quarantine import Refusal
from control_plane.resources.view import View
from control_plane.snapshot import Snapshot

BOUND_S = 5.0  # longest that a change waits for its canaries
_MAX_LOOKED_AT = 50  # Envoys among which affected ones are sought, in the order of their hashes


@dataclass(slots=True)
class _Shown:
    """What a view is shown: before the present wave, and by the plan in force."""

    before: Snapshot
    newest: Snapshot
    generation: int  # in which it was looked at last
    changed: bool = False
    held: Snapshot | None = None  # made when first asked for

    def let_pass(self) -> None:
        self.before, self.changed, self.held = self.newest, False, None

    def held_back(self) -> Snapshot:
        if self.held is None:
            self.held = held_form(self.before, self.newest)
        return self.held


class Canary:
    """The gates of all roles. Used from one event loop."""

    def __init__(
        self,
        envoys: Callable[[str], Iterable[Envoy]],
        newest: Callable[[View], Snapshot | None],
        bound_s: float = BOUND_S,
    ) -> None:
        """`envoys` are a role's, `newest` is what a view would be served without a gate."""
        self._envoys = envoys
        self._newest = newest
        self._bound_s = bound_s
        self._shown: dict[View, _Shown] = {}
        self._departed: set[View] = set()  # shown, and without a stream; gone with the wave
        self._waves: dict[str, Wave] = {}  # the last one of each role
        self._generation = 0
        self._news: list[News] = []

    def note_change(self) -> None:
        """What views are shown may differ from now on: whoever proved it has to do so again."""
        self._generation += 1
        for wave in self._waves.values():
            wave.pending = set(wave.canaries)

    def serve(self, view: View, node: str, newest: Snapshot, now: float) -> Snapshot:
        """Return what a connected Envoy is served: the newest, or the form of before."""
        wave = self._under_way(view.role, now)
        shown = self._look(view, newest)
        if not shown.changed:
            if wave is not None:
                wave.waiting.pop(node, None)
            return newest
        if wave is None or (not wave.waiting and wave.begun_in != self._generation):
            wave = self._start(view, node, now)
        if wave is None:
            shown.let_pass()
            return newest
        if node in wave.served or self._joins(wave, view.role, node):
            return newest
        wave.waiting[node] = view
        if not wave.told:
            wave.told = True
            self._news.append(Held(self._describe(view.role, wave)))
        return shown.held_back()

    def peek(self, view: View, newest: Snapshot, now: float) -> Snapshot:
        """Return what is served to somebody who is no connected Envoy: asking changes nothing."""
        shown = self._shown.get(view)
        if shown is None or self._under_way(view.role, now) is None:
            return newest
        return held_form(shown.before, newest) if is_changed(shown.before, newest) else newest

    def awaits(self, view: View, node: str) -> bool:
        """Whether an Envoy's ACK is awaited."""
        wave = self._active(view.role)
        return wave is not None and node in wave.pending

    def concerns(self, view: View, node: str) -> bool:
        """Whether an Envoy is awaited, or waits itself."""
        wave = self._active(view.role)
        return wave is not None and (node in wave.pending or node in wave.waiting)

    def note_proven(self, view: View, node: str) -> None:
        """Record that a canary took everything; the last one of them lets the others go on."""
        wave = self._active(view.role)
        if wave is None or node not in wave.pending:
            return
        wave.pending.discard(node)
        if not wave.pending:
            self._release(view.role, wave, ACKNOWLEDGED)

    def note_refused(self, view: View, node: str, refusals: Iterable[Refusal]) -> None:
        """Record what a canary refused and is quarantined: its mates need not try the like."""
        wave = self._active(view.role)
        if wave is not None and node in wave.canaries:
            wave.refusals |= {(item.type_url, item.name): item for item in refusals}

    def note_cleared(self, refusals: Iterable[Refusal]) -> None:
        """Forget refusals, so that what they were about is offered again."""
        for wave in self._waves.values():
            for refusal in refusals:
                wave.refusals.pop((refusal.type_url, refusal.name), None)

    def note_unfit(self, view: View, node: str) -> bool:
        """Record that an Envoy is gone, or can prove nothing; return whether another stands in."""
        wave = self._active(view.role)
        if wave is None:
            return False
        wave.waiting.pop(node, None)
        if not wave.drop(node):
            return False
        waiting = [envoy for envoy in self._envoys(view.role) if envoy.node in wave.waiting]
        if waiting:
            wave.choose(min(waiting, key=rank))
        elif not wave.pending:
            self._release(view.role, wave, ACKNOWLEDGED if wave.canaries else NOBODY_LEFT)
        return bool(waiting)

    def forget(self, view: View) -> None:
        """Drop a view that no stream uses any more; during a wave an Envoy may come back to it."""
        if self._active(view.role) is None:
            self._shown.pop(view, None)
        elif view in self._shown:
            self._departed.add(view)

    def spoken_for(self, view: View, newest: Snapshot) -> tuple[tuple[Refusal, str], ...]:
        """Return the canaries' refusals that hold for a view as well, each with the view's version.

        Nodes' resources have the same names, and edges' listeners other addresses: what a canary
        refused of a changed resource, its mates need not try.
        """
        wave = self._waves.get(view.role)
        if wave is None or not wave.refusals or wave.over_in not in (None, self._generation):
            return ()
        shown = self._look(view, newest)
        if not shown.changed:
            return ()
        return tuple(
            (wave.refusals[type_url, name], version)
            for type_url, name, version in changed_contents(shown.before, newest)
            if version and (type_url, name) in wave.refusals
        )

    def before(self, view: View) -> Snapshot | None:
        """Return the form that a view had before a change that is not proven; None without one."""
        shown = self._shown.get(view)
        return shown.before if shown is not None and shown.changed else None

    def next_deadline(self, role: str) -> float | None:
        """Return when those who wait in a role are let go at the latest; None if nobody waits."""
        wave = self._active(role)
        return wave.since + self._bound_s if wave is not None and wave.waiting else None

    def holds(self) -> tuple[Hold, ...]:
        """Return the waves in which Envoys are held now, by role."""
        return tuple(
            self._describe(role, wave)
            for role, wave in sorted(self._waves.items())
            if wave.over_in is None and wave.waiting
        )

    def waiting(self, role: str) -> int:
        """Return how many Envoys of a role are held now."""
        wave = self._active(role)
        return 0 if wave is None else len(wave.waiting)

    def take_news(self) -> tuple[News, ...]:
        """Return what began and ended since the last call."""
        news, self._news = tuple(self._news), []
        return news

    def _look(self, view: View, newest: Snapshot) -> _Shown:
        """Compare what a view is shown with what it had, once for each snapshot."""
        shown = self._shown.get(view)
        if shown is None:
            shown = self._shown[view] = _Shown(newest, newest, self._generation)
        elif shown.newest is not newest:
            shown.newest, shown.held = newest, None
            shown.changed = is_changed(shown.before, newest)
            if not shown.changed:
                shown.before = newest
        shown.generation = self._generation
        self._departed.discard(view)
        return shown

    def _active(self, role: str) -> Wave | None:
        wave = self._waves.get(role)
        return wave if wave is not None and wave.over_in is None else None

    def _under_way(self, role: str, now: float) -> Wave | None:
        """Return the wave that is under way; one whose time is over ends here."""
        wave = self._active(role)
        if wave is not None and now >= wave.since + self._bound_s:
            self._release(role, wave, TIMED_OUT)
            return None
        return wave

    def _start(self, view: View, node: str, now: float) -> Wave | None:
        """Begin a wave; None where there is none: the plan is proven, or nobody else can try it."""
        last = self._waves.get(view.role)
        if last is not None and last.over_in == self._generation:
            return None
        known = {envoy.node: envoy for envoy in self._envoys(view.role)}
        wave = Wave(now, self._generation, canaries_of(len(known)))
        if not known.keys() - {node}:
            wave.over_in = self._generation
            self._waves[view.role] = wave
            return None
        chosen = self._affected(known.values(), wave.quota) or [
            envoy for envoy in (known.get(node),) if envoy is not None
        ]
        if not chosen:
            return None
        if last is not None and last.over_in is None:
            wave.inherit(last)
        for envoy in chosen:
            wave.choose(envoy)
        self._waves[view.role] = wave
        return wave

    def _affected(self, envoys: Iterable[Envoy], count: int) -> list[Envoy]:
        """Return the first few Envoys that a change concerns, in the order of their hashes."""
        found: list[Envoy] = []
        for envoy in sorted(envoys, key=rank)[:_MAX_LOOKED_AT]:
            newest = self._newest(envoy.view) if len(found) < count else None
            if newest is not None and self._look(envoy.view, newest).changed:
                found.append(envoy)
        return found

    def _joins(self, wave: Wave, role: str, node: str) -> bool:
        """Make an Envoy that asks a canary while too few of those looked at were affected."""
        if len(wave.served) >= wave.quota:
            return False
        envoy = next((item for item in self._envoys(role) if item.node == node), None)
        if envoy is not None:
            wave.choose(envoy)
        return envoy is not None

    def _release(self, role: str, wave: Wave, reason: str) -> None:
        """Let everyone go on. Who has not looked at this generation yet passes when it does."""
        if wave.told:
            self._news.append(Released(self._describe(role, wave), reason))
        wave.over_in = self._generation
        wave.waiting = {}
        for view in [view for view in self._departed if view.role == role]:
            self._departed.discard(view)
            self._shown.pop(view, None)
        for view, shown in self._shown.items():
            if view.role == role and shown.generation == self._generation:
                shown.let_pass()

    def _describe(self, role: str, wave: Wave) -> Hold:
        return Hold(
            role=role,
            since=wave.since,
            canaries=tuple(sorted(wave.pending)),
            waiting=tuple(sorted(wave.waiting)),
            contents=tuple(sorted(set(self._contents(wave)))),
        )

    def _contents(self, wave: Wave) -> Iterator[Content]:
        for view in set(wave.waiting.values()):
            shown = self._shown[view]
            yield from changed_contents(shown.before, shown.newest)

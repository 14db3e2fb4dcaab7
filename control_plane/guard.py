"""Which catalog is put in force: a read is believed, but a suspected loss needs a second proof.

Consul restarted empty looks like "all engines are gone", and believing it would take every Envoy's
endpoints away. So engines that were alive and are missing from a read are held, as last seen, when
the whole catalog came back empty or when Consul itself came back (its index went backwards, or
reads failed before). They leave the hold when they are seen again or after `hold_s`, whichever is
first. An engine that leaves an otherwise plausible catalog was deregistered: it goes at once.
A failed read is no read: it never comes here and changes nothing.

The node Envoys' own health checks go on all the while, so a held engine that is really gone gets
no traffic.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from control_plane.catalog import Catalog, CatalogEntry

HOLD_S = 60.0  # several TTLs of an agent: time enough to register again with an empty Consul


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogRead:
    """One complete read of a catalog source."""

    catalog: Catalog
    index: int = 0  # Consul's index; counts reads where there is no Consul
    reset: bool = False  # the source came back: its index fell, or reads failed before this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An engine that a read lacked, as last seen."""

    entry: CatalogEntry
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardState:
    """The last read, and what is kept besides it."""

    seen: Catalog | None = None  # None until the first complete read
    held: Mapping[str, Held] = field(default_factory=lambda: MappingProxyType({}))
    empty_until_s: float | None = None  # the first read was empty: not yet believed

    @property
    def catalog(self) -> Catalog | None:
        """The catalog in force, or None while there is none to believe."""
        if self.seen is None or self.empty_until_s is not None:
            return None
        if not self.held:
            return self.seen
        entries = {entry.id: entry for entry in self.seen.entries}
        entries |= {held.entry.id: held.entry for held in self.held.values()}
        return replace(self.seen, entries=tuple(entries[key] for key in sorted(entries)))

    @property
    def release_at_s(self) -> float | None:
        """When time alone next changes the catalog in force, or None."""
        times = [held.until_s for held in self.held.values()]
        if self.empty_until_s is not None:
            times.append(self.empty_until_s)
        return min(times, default=None)


def admit_catalog(
    state: GuardState, read: CatalogRead, now_s: float, *, hold_s: float = HOLD_S
) -> GuardState:
    """Return the state after a complete read at `now_s` (seconds of a clock that never jumps)."""
    state = pass_time(state, now_s)
    catalog = read.catalog
    if state.catalog is None:
        if catalog.entries:
            return GuardState(seen=catalog)
        until_s = now_s + hold_s if state.empty_until_s is None else state.empty_until_s
        return GuardState(seen=catalog, empty_until_s=until_s)
    present = {entry.id for entry in catalog.entries}
    held = {key: value for key, value in state.held.items() if key not in present}
    if read.reset or not catalog.entries:
        for entry in state.catalog.entries:
            if entry.passing and entry.id not in present and entry.id not in held:
                held[entry.id] = Held(entry=entry, until_s=now_s + hold_s)
    return GuardState(seen=catalog, held=MappingProxyType(held))


def pass_time(state: GuardState, now_s: float) -> GuardState:
    """Return the state with every hold released whose time is over."""
    held = {key: value for key, value in state.held.items() if value.until_s > now_s}
    empty_until_s = state.empty_until_s
    if empty_until_s is not None and empty_until_s <= now_s:
        empty_until_s = None
    return replace(state, held=MappingProxyType(held), empty_until_s=empty_until_s)

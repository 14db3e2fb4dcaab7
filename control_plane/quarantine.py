"""Contents that an Envoy refused, and what every Envoy is served in their place.

A refused content is known by its hash and never sent again by itself: everyone is served the last
form of that resource that an Envoy acknowledged, while all other resources move on. A fix is
another hash and goes out at once; an operator may clear a refusal. What another Envoy acknowledged
is good: a refusal of that, or one that the Envoy's own host caused, concerns this Envoy alone.

A content that was refused before anything of its type was ever acknowledged is still offered to
other Envoys: there is no better form of it, and the fault may be the first Envoy's own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from control_plane.resources.mesh_tls import IDENTITY
from control_plane.resources.view import View
from control_plane.snapshot import LISTENER, SECRET, Snapshot, VersionedResource
from control_plane.stream import Nacked

_MAX_REFUSALS = 10_000
_OWN_FAULTS = ("cannot bind", "unable to bind")  # of the host, whatever the content
_OF_FILES = (SECRET, IDENTITY)  # names files of the host: only these can be at fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One content that is not sent any more."""

    type_url: str
    name: str
    version: str  # hash of the content
    node: str  # the first Envoy that refused it
    message: str  # the tail of its text
    refused_at: float  # seconds since the epoch


# Edges are shown the same clusters, endpoints and routes, whatever they listen on; nodes are not.
_Scope = str  # "" for all edges, else the node's ID
_Content = tuple[_Scope, str, str, str]  # scope, type URL, name, version
_Taken = dict[str, dict[str, VersionedResource]]  # by type URL and name


class Quarantine:
    """What was acknowledged and refused. Used from one event loop."""

    def __init__(self) -> None:
        self._taken: dict[View, _Taken] = {}
        self._refusals: dict[_Content, Refusal] = {}

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Everything that is not sent now, oldest first."""
        return tuple(self._refusals.values())

    def note_acked(
        self, view: View, type_url: str, resources: Iterable[VersionedResource]
    ) -> tuple[Refusal, ...]:
        """Record what an Envoy took; return the refusals that this lifts."""
        taken = self._taken.setdefault(view, {}).setdefault(type_url, {})
        lifted = []
        for resource in resources:
            taken[resource.name] = resource
            content = (view.node_id, type_url, resource.name, resource.version)
            refusal = self._refusals.pop(content, None)
            if refusal is not None:
                lifted.append(refusal)
        return tuple(lifted)

    def note_refused(
        self, view: View, event: Nacked, *, node: str, at_s: float
    ) -> tuple[Refusal, ...]:
        """Record what an Envoy refused at a time; return what nobody is sent from now on."""
        if not event.certain or is_own_fault(event.message):
            return ()
        added: list[Refusal] = []
        for name, version in event.versions:
            content = (view.node_id, event.type_url, name, version)
            good = self._last_taken(view, event.type_url).get(name)
            if (event.type_url, name) == _OF_FILES:
                continue
            if content in self._refusals or (good is not None and good.version == version):
                continue
            self._refusals[content] = Refusal(
                type_url=event.type_url,
                name=name,
                version=version,
                node=node,
                message=event.message,
                refused_at=at_s,
            )
            added.append(self._refusals[content])
        self._bound()
        return tuple(added)

    def extend(self, view: View, refusals: Iterable[tuple[Refusal, str]]) -> tuple[Refusal, ...]:
        """Refuse for a view what a canary refused, in the version that the view would be sent."""
        added: list[Refusal] = []
        for refusal, version in refusals:
            content = (view.node_id, refusal.type_url, refusal.name, version)
            if content not in self._refusals:
                self._refusals[content] = replace(refusal, version=version)
                added.append(self._refusals[content])
        self._bound()
        return tuple(added)

    def note_served(self, view: View, snapshot: Snapshot) -> None:
        """Take what a view was served until now as acknowledged, where nothing else is known.

        An Envoy that came back holding everything acknowledges nothing.
        """
        for type_url, resources in snapshot.resources.items():
            taken = self._taken.setdefault(view, {}).setdefault(type_url, {})
            for name, resource in resources.items():
                if (view.node_id, type_url, name, resource.version) not in self._refusals:
                    taken.setdefault(name, resource)

    def _bound(self) -> None:
        while len(self._refusals) > _MAX_REFUSALS:
            self._refusals.pop(next(iter(self._refusals)))

    def clear(self, version: str | None) -> tuple[Refusal, ...]:
        """Lift the refusals of a version, or all with None, and return them."""
        lifted = {
            content: refusal
            for content, refusal in self._refusals.items()
            if version in (None, refusal.version)
        }
        for content in lifted:
            del self._refusals[content]
        return tuple(lifted.values())

    def forget(self, view: View) -> None:
        """Drop what was acknowledged by a view without an Envoy, unless it stands in for refused.

        An Envoy that comes back acknowledges again.
        """
        if all(scope != view.node_id for scope, *_ in self._refusals):
            self._taken.pop(view, None)

    def serve(self, view: View, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with refused contents replaced by their last acknowledged form."""
        refused = [content for content in self._refusals if content[0] == view.node_id]
        if not refused:
            return snapshot
        resources: dict[str, Mapping[str, VersionedResource]] = dict(snapshot.resources)
        for _, type_url, name, version in refused:
            current = resources.get(type_url, {})
            if name not in current or current[name].version != version:
                continue
            taken = self._last_taken(view, type_url)
            if not taken:
                continue  # nothing of this type was ever taken
            served = {key: value for key, value in current.items() if key != name}
            if name in taken:
                served[name] = taken[name]
            resources[type_url] = MappingProxyType(dict(sorted(served.items())))
        return Snapshot(MappingProxyType(resources), snapshot.eds_names)

    def _last_taken(self, view: View, type_url: str) -> Mapping[str, VersionedResource]:
        """Return the last acknowledged form of every resource, this view's own before others'.

        A listener holds the address that its own edge listens on, so others' are none for it.
        """
        own = self._taken.get(view, {}).get(type_url, {})
        if type_url == LISTENER:
            return own
        merged: dict[str, VersionedResource] = {}
        for other, taken in self._taken.items():
            if other.node_id == view.node_id:
                merged |= taken.get(type_url, {})
        return merged | own


def is_own_fault(message: str) -> bool:
    """Whether an Envoy's own host made it refuse, whatever the content."""
    return any(fault in message for fault in _OWN_FAULTS)

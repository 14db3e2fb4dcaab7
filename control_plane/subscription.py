"""What one stream wants of one resource type, what it holds, and what it is still owed.

The rules are those of incremental xDS: subscriptions always count, even beside a stale nonce;
a held resource that is named again is sent again; a name that does not exist is answered as
removed and stays watched.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from control_plane.snapshot import VersionedResource

WILDCARD = "*"
_IN_DOUBT = ""  # the version of a resource that the client refused: it may hold part of it


@dataclass(frozen=True, slots=True)
class Changes:
    """What a stream is owed of one type."""

    resources: tuple[VersionedResource, ...] = ()
    removed: tuple[str, ...] = ()  # held by the client, and gone
    unknown: tuple[str, ...] = ()  # asked for, and not there: a question that is answered at once

    def __bool__(self) -> bool:
        return bool(self.resources or self.removed or self.unknown)

    @property
    def names_removed(self) -> tuple[str, ...]:
        """What the response names as removed."""
        return tuple(sorted({*self.removed, *self.unknown}))


@dataclass(frozen=True, slots=True)
class Outstanding:
    """A response that is neither acknowledged nor refused yet."""

    nonce: str
    resources: tuple[VersionedResource, ...]
    removed: tuple[str, ...]

    @property
    def versions(self) -> dict[str, str]:
        """The version of each resource sent, by name."""
        return {resource.name: resource.version for resource in self.resources}


@dataclass(slots=True)
class Subscription:
    """The state of one type on one stream."""

    wildcard: bool = False
    legacy: bool = False  # a wildcard because nothing was named; ends with the first name
    names: set[str] = field(default_factory=set)
    held: dict[str, str] = field(default_factory=dict)  # name → version that the client has
    refused: dict[str, str] = field(default_factory=dict)  # name → version last NACKed
    forced: set[str] = field(default_factory=set)  # to be sent although held
    unanswered: set[str] = field(default_factory=set)  # named, and not answered since
    outstanding: Outstanding | None = None
    sent_bodies: dict[str, VersionedResource] = field(default_factory=dict)  # of the last response
    greeted: bool = False  # something was sent, so an Envoy that waits for a first answer has it
    responses: int = 0
    acks: int = 0
    nacks: int = 0
    sent_nonce: str = ""
    acked_nonce: str = ""
    last_error: str = ""  # of the last NACK, until nothing of what was refused is wanted any more

    @classmethod
    def first(
        cls,
        subscribe: Iterable[str],
        unsubscribe: Iterable[str],
        held: Mapping[str, str],
        *,
        legacy_wildcard: bool,
    ) -> "Subscription":
        """Return the state after a stream's first request for a type.

        No name at all means everything, for the types that know the legacy wildcard. `held` is
        what the client brought along from an earlier stream, by name and version.
        """
        names = set(subscribe)
        subscription = cls(held=dict(held), greeted=bool(held))
        subscription.legacy = legacy_wildcard and not names
        subscription.wildcard = WILDCARD in names or subscription.legacy
        subscription.names = names - {WILDCARD}
        subscription.unanswered = {name for name in subscription.names if name not in held}
        subscription.unsubscribe(unsubscribe)
        return subscription

    def subscribe(self, names: Iterable[str], unsubscribed: frozenset[str]) -> None:
        """Add names; each is answered, held or not. A name that is also unsubscribed is not."""
        for name in names:
            if name in unsubscribed:
                continue
            if name == WILDCARD:
                self.wildcard = True
                continue
            self.names.add(name)
            self.unanswered.add(name)

    def unsubscribe(self, names: Iterable[str]) -> None:
        """Drop names. One that the wildcard still covers is sent again, as the protocol asks."""
        for name in sorted(set(names)):
            if name == WILDCARD:
                self._end_wildcard()
            elif name in self.names:
                self.names.discard(name)
                self.unanswered.discard(name)
                if self.wildcard:
                    self.unanswered.add(name)
                else:
                    self._forget(name)

    def _end_wildcard(self) -> None:
        self.wildcard = False
        for name in set(self.held) - self.names:
            self._forget(name)
        self.unanswered &= self.names

    def _forget(self, name: str) -> None:
        self.held.pop(name, None)
        self.forced.discard(name)
        self.pardon(name)

    def pardon(self, name: str) -> None:
        """Forget that a resource was refused."""
        if self.refused.pop(name, None) is not None and not self.refused:
            self.last_error = ""

    def covers(self, name: str) -> bool:
        """Whether the stream wants this name."""
        return self.wildcard or name in self.names

    def owed(self, current: Mapping[str, VersionedResource]) -> Changes:
        """Return what must be sent so that the stream has what it wants of the current set."""
        wanted = current if self.wildcard else sorted(self.names & current.keys())
        resources = tuple(current[name] for name in wanted if self._owes(current[name]))
        unknown = {name for name in self.unanswered if name not in current}
        removed = {name for name in self.held if name not in current and self.covers(name)}
        return Changes(resources, tuple(sorted(removed - unknown)), tuple(sorted(unknown)))

    def settled(self, current: Mapping[str, VersionedResource]) -> bool:
        """Whether the client took all that it wants of the current set, and refuses none of it."""
        if self.outstanding is not None or self.owed(current):
            return False
        return not any(
            name in current and current[name].version == version
            for name, version in self.refused.items()
        )

    def _owes(self, resource: VersionedResource) -> bool:
        name = resource.name
        if name in self.unanswered:
            return True
        if self.refused.get(name) == resource.version:
            return False
        return name in self.forced or self.held.get(name) != resource.version

    def sent(self, nonce: str, changes: Changes) -> None:
        """Record a response that leaves now."""
        removed = changes.names_removed
        self.outstanding = Outstanding(nonce, changes.resources, removed)
        names = [resource.name for resource in changes.resources]
        self.unanswered.difference_update(names, removed)
        self.forced.difference_update(names, removed)
        self.greeted = True
        self.responses += 1
        self.sent_nonce = nonce

    def acknowledged(self) -> None:
        """Record that the outstanding response was taken."""
        if self.outstanding is None:
            return
        self._settle_removals(self.outstanding)
        for resource in self.outstanding.resources:
            self.pardon(resource.name)
            if self.covers(resource.name):
                self.held[resource.name] = resource.version
        if not self.refused:
            self.last_error = ""
        self.acks += 1
        self.acked_nonce = self.outstanding.nonce
        self.outstanding = None

    def rejected(self, message: str, blamed: Iterable[str]) -> None:
        """Record that the outstanding response was refused because of the resources blamed.

        Envoy applies the valid part of a refused response, or none of it, so every name in it is
        in doubt: what is not blamed is sent again at once, and of what is blamed any other
        version, the one before included.
        """
        at_fault = set(blamed)
        if self.outstanding is None:
            return
        self._settle_removals(self.outstanding)
        for resource in self.outstanding.resources:
            if self.covers(resource.name):
                self.held[resource.name] = _IN_DOUBT
                if resource.name in at_fault:
                    self.refused[resource.name] = resource.version
        self.nacks += 1
        self.last_error = message
        self.outstanding = None

    def _settle_removals(self, outstanding: Outstanding) -> None:
        for name in outstanding.removed:
            self.held.pop(name, None)
            self.pardon(name)

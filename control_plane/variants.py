"""The two variants of xDS: how a request is read and a response written. All else is the stream's.

Incremental: names are added and dropped one by one, and a response holds what changed. State of
the world: every request names all that is wanted; a response of clusters or listeners holds all of
them, and what is not in it is gone. Of the other types a response may hold what changed, and
nothing is ever removed.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from envoy.service.discovery.v3 import discovery_pb2

from control_plane.snapshot import (
    CLUSTER,
    ENDPOINT,
    LISTENER,
    WILDCARD_TYPES,
    VersionedResource,
    empty_assignment,
)
from control_plane.subscription import WILDCARD, Changes, Subscription

_WHOLE_TYPES = frozenset({CLUSTER, LISTENER})  # of which a response holds everything


def version_of(resources: Iterable[VersionedResource]) -> str:
    """Return the version of a set: equal sets have equal ones, on every replica."""
    digest = hashlib.sha256()
    for item in resources:
        digest.update(f"{item.name}\0{item.version}\0".encode())
    return digest.hexdigest()[:16]


class Variant(Protocol):
    """One variant of the protocol."""

    counts_when_stale: bool  # whether a request beside a stale nonce still says what is wanted

    def names(self, request: Any) -> tuple[Iterable[str], ...]:
        """Return every list of names in a request, to be bounded."""

    def begin(self, request: Any) -> Subscription:
        """Return what a type's first request wants."""

    def resumes(self, request: Any) -> bool:
        """Whether a type's first request tells what the client holds of an earlier stream."""

    def update(self, subscription: Subscription, request: Any) -> bool:
        """Apply a later request; return whether it says anything about what is wanted."""

    def complete(
        self,
        type_url: str,
        subscription: Subscription,
        due: Changes,
        current: Mapping[str, VersionedResource],
    ) -> Changes:
        """Return what a response must hold so that the client learns what is due."""

    def encode(
        self,
        type_url: str,
        nonce: str,
        sent: Changes,
        subscription: Subscription,
        current: Mapping[str, VersionedResource],
    ) -> Any:
        """Return the response."""


class Delta:
    """Incremental xDS."""

    counts_when_stale = True

    def names(self, request: Any) -> tuple[Iterable[str], ...]:
        """Return the names asked for and dropped, and those that the client brought along."""
        asked = (*request.resource_names_subscribe, *request.resource_names_unsubscribe)
        return asked, request.initial_resource_versions

    def begin(self, request: Any) -> Subscription:
        """Only the first request may tell what the client holds already."""
        return Subscription.first(
            request.resource_names_subscribe,
            request.resource_names_unsubscribe,
            request.initial_resource_versions,
            legacy_wildcard=request.type_url in WILDCARD_TYPES,
        )

    def resumes(self, request: Any) -> bool:
        """It holds what it tells the versions of."""
        return bool(request.initial_resource_versions)

    def update(self, subscription: Subscription, request: Any) -> bool:
        """Drop names, then add others; a name in both lists is dropped."""
        if not (request.resource_names_subscribe or request.resource_names_unsubscribe):
            return False
        unsubscribe = frozenset(request.resource_names_unsubscribe)
        subscription.unsubscribe(unsubscribe)
        subscription.subscribe(request.resource_names_subscribe, unsubscribe)
        return True

    def complete(
        self,
        _type_url: str,
        _subscription: Subscription,
        due: Changes,
        _current: Mapping[str, VersionedResource],
    ) -> Changes:
        """What is due is what is sent."""
        return due

    def encode(
        self,
        type_url: str,
        nonce: str,
        sent: Changes,
        _subscription: Subscription,
        _current: Mapping[str, VersionedResource],
    ) -> Any:
        """Return the DeltaDiscoveryResponse."""
        return discovery_pb2.DeltaDiscoveryResponse(
            type_url=type_url,
            nonce=nonce,
            resources=[
                discovery_pb2.Resource(name=item.name, version=item.version, resource=item.body)
                for item in sent.resources
            ],
            removed_resources=sent.names_removed,
        )


class StateOfTheWorld:
    """State-of-the-world xDS."""

    counts_when_stale = False

    def names(self, request: Any) -> tuple[Iterable[str], ...]:
        """Return the one list."""
        return (request.resource_names,)

    def begin(self, request: Any) -> Subscription:
        """A first request is answered in full, whatever version it tells: it may hold a part."""
        legacy = request.type_url in WILDCARD_TYPES
        return Subscription.first(request.resource_names, (), {}, legacy_wildcard=legacy)

    def resumes(self, request: Any) -> bool:
        """It tells the version that it took last."""
        return bool(request.version_info)

    def update(self, subscription: Subscription, request: Any) -> bool:
        """Take the list for all that is wanted. No name means everything until one was given."""
        names = set(request.resource_names)
        if not names and subscription.legacy:
            return False
        before = subscription.wildcard, set(subscription.names)
        if subscription.wildcard and WILDCARD not in names:
            subscription.unsubscribe([WILDCARD])
        subscription.legacy = False
        subscription.unsubscribe(subscription.names - names)
        new = names - subscription.names - ({WILDCARD} if subscription.wildcard else set())
        subscription.subscribe(sorted(new), frozenset())
        return before != (subscription.wildcard, subscription.names)

    def complete(
        self,
        type_url: str,
        subscription: Subscription,
        due: Changes,
        current: Mapping[str, VersionedResource],
    ) -> Changes:
        """Fill a response up with what it would otherwise remove."""
        if type_url not in _WHOLE_TYPES:
            return self._partial(type_url, subscription, due)
        if not due:
            return due
        wanted = {name: item for name, item in current.items() if subscription.covers(name)}
        if any(subscription.refused.get(name) == item.version for name, item in wanted.items()):
            return Changes()  # there is no response without what was refused
        staying = subscription.held.keys() - wanted.keys() - set(due.removed)
        for name in staying & subscription.sent_bodies.keys():
            wanted[name] = subscription.sent_bodies[name]
        if not wanted and not due.removed:
            return Changes()
        return Changes(tuple(wanted[name] for name in sorted(wanted)), due.removed)

    def _partial(self, type_url: str, subscription: Subscription, due: Changes) -> Changes:
        """Nothing can be removed; a cluster that is gone is answered with no endpoints."""
        for name in due.removed:
            subscription.held.pop(name, None)
        if type_url != ENDPOINT:
            return replace(due, removed=(), unknown=())
        empty = tuple(empty_assignment(name) for name in due.unknown)
        return Changes(due.resources + empty)

    def encode(
        self,
        type_url: str,
        nonce: str,
        sent: Changes,
        subscription: Subscription,
        current: Mapping[str, VersionedResource],
    ) -> Any:
        """Return the DiscoveryResponse. Its version is that of all that the stream wants."""
        if type_url in _WHOLE_TYPES:
            subscription.sent_bodies = {item.name: item for item in sent.resources}
        wanted = [item for name, item in current.items() if subscription.covers(name)]
        return discovery_pb2.DiscoveryResponse(
            type_url=type_url,
            nonce=nonce,
            version_info=version_of(wanted),
            resources=[item.body for item in sent.resources],
        )


DELTA = Delta()
STATE_OF_THE_WORLD = StateOfTheWorld()

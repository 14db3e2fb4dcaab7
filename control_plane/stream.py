"""One ADS stream of either variant as a state machine without I/O.

Requests and snapshots go in, responses come out; time is an argument. Order is make before break:
runtime, clusters, endpoints, extensions, listeners, routes, and removals of clusters after the
routes that used them. Endpoints never wait for the clusters' ACK, since Envoy holds that back
until they arrive, and the answer "there is no such thing" never waits at all; every other wait
ends after ORDER_TIMEOUT_S.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from control_plane.errors import WattmeshError
from control_plane.orphans import OrphanWatch
from control_plane.snapshot import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    ROUTE,
    RUNTIME,
    SECRET,
    TYPE_URLS,
    Snapshot,
    VersionedResource,
)
from control_plane.subscription import Changes, Subscription
from control_plane.variants import DELTA, Variant

MAX_NAMES = 100_000  # per stream and type
MAX_NAME_BYTES = 2048
STALE_NONCE = "stale nonce"
NOT_SERVED = "not served here"
ORDER_TIMEOUT_S = 5.0  # longest that one type waits for another's ACK
_ERROR_TAIL_CHARS = 500  # Envoy puts the reason behind a dump of the whole message
_ERROR_SEPARATORS = re.compile(r"[\s'\",;()\[\]]+")
_MAX_ERROR_CHARS = 64 * 1024  # that are searched for names
_USED = (CLUSTER, ENDPOINT)  # what listeners and routes refer to
_USERS = (LISTENER, ROUTE)
# Refer to nothing; a listener asks for its extensions once it is here. A secret of which a cluster
# or a listener waits must not wait for their ACK.
_ALONE = (RUNTIME, EXTENSION, SECRET)
_HOLDERS = (CLUSTER, LISTENER)  # of secrets


class StreamError(WattmeshError):
    """A request that ends the stream; `status` names the gRPC status code."""

    def __init__(self, status: str, message: str) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Acked:
    """The client took a response."""

    type_url: str
    resources: tuple[VersionedResource, ...] = ()


@dataclass(frozen=True, slots=True)
class Nacked:
    """The client refused a response."""

    type_url: str
    nonce: str
    versions: tuple[tuple[str, str], ...]  # (name, version) that may be at fault
    message: str  # the tail of Envoy's text
    certain: bool  # the text names them, or there was but one


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A request that changed what the client wants."""

    type_url: str


@dataclass(frozen=True, slots=True)
class Ignored:
    """A request that says nothing new: a stale nonce, or a type that is not served here."""

    type_url: str
    reason: str  # STALE_NONCE or NOT_SERVED


Event = Acked | Nacked | Subscribed | Ignored


class AdsStream:
    """The protocol state of one stream."""

    def __init__(
        self,
        make_nonce: Callable[[], str],
        variant: Variant = DELTA,
        only_type: str | None = None,
    ) -> None:
        self.node: Any = None  # envoy.config.core.v3.Node of the first request
        self._variant = variant
        self._only_type = only_type  # of a service of one type, which requests need not name
        self._make_nonce = make_nonce
        self._snapshot: Snapshot | None = None
        self._types: dict[str, Subscription] = {}
        self._waiting_since: dict[str, float] = {}
        self.orphans = OrphanWatch()

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        """The state per type URL, for status reports."""
        return self._types

    def set_snapshot(self, snapshot: Snapshot) -> None:
        """Put new content in force; `responses` then tells what follows."""
        self._snapshot = snapshot

    def receive(self, request: Any) -> tuple[Event, ...]:
        """Take a discovery request. Raise StreamError when the stream cannot go on."""
        self._identify(request)
        type_url = self._type_of(request)
        for names in self._variant.names(request):
            _check_bounds(names)
        if type_url not in TYPE_URLS:
            return (Ignored(type_url, NOT_SERVED),)
        subscription = self._types.get(type_url)
        if subscription is None:
            return self._begin(request)
        if not self._variant.counts_when_stale and _is_stale(subscription, request):
            return (Ignored(type_url, STALE_NONCE),)
        events = self._settle(subscription, request)
        if self._variant.update(subscription, request):
            if len(subscription.names) > MAX_NAMES:
                raise StreamError("RESOURCE_EXHAUSTED", f"more than {MAX_NAMES} names subscribed")
            events.append(Subscribed(type_url))
        return tuple(events)

    def asks(self, request: Any) -> bool:
        """Whether a request may call for an answer, as a plain ACK does not."""
        named = (name for names in self._variant.names(request) for name in names)
        return not request.response_nonce or next(named, None) is not None

    def _type_of(self, request: Any) -> str:
        """Return the request's type URL, which a service of one type implies."""
        type_url = str(request.type_url)
        if self._only_type is not None:
            if type_url not in ("", self._only_type):
                raise StreamError("INVALID_ARGUMENT", f"this service serves {self._only_type}")
            request.type_url = self._only_type
            return self._only_type
        if not type_url:
            raise StreamError("INVALID_ARGUMENT", "type_url is empty")
        return type_url

    def _begin(self, request: Any) -> tuple[Event, ...]:
        """Take a type's first request."""
        type_url = request.type_url
        self._types[type_url] = self._variant.begin(request)
        if self._only_type is None:
            self.orphans.note_first(type_url, resumed=self._variant.resumes(request))
        stale = (Ignored(type_url, STALE_NONCE),) if request.response_nonce else ()
        return (*stale, Subscribed(type_url))

    def _identify(self, request: Any) -> None:
        if self.node is not None:
            return
        if not request.node.id:
            raise StreamError("INVALID_ARGUMENT", "the first request carries no node.id")
        self.node = request.node

    def _settle(self, subscription: Subscription, request: Any) -> list[Event]:
        """Match an ACK or NACK to what is outstanding. The error decides, never a version."""
        type_url, nonce = request.type_url, request.response_nonce
        if not nonce:
            return []
        outstanding = subscription.outstanding
        if outstanding is None or outstanding.nonce != nonce:
            settled = nonce == subscription.sent_nonce  # it was taken or refused before
            return [] if settled else [Ignored(type_url, STALE_NONCE)]
        if not request.HasField("error_detail"):
            subscription.acknowledged()
            return [Acked(type_url, outstanding.resources)]
        message = request.error_detail.message
        named = _named(outstanding.versions, message[-_MAX_ERROR_CHARS:])
        suspects = named or _news(outstanding.versions, subscription.held)
        certain = bool(named) or len(suspects) == 1
        blamed = suspects or tuple(sorted(outstanding.versions.items()))
        tail = message[-_ERROR_TAIL_CHARS:] or "no reason given"
        subscription.rejected(tail, [name for name, _ in blamed])
        return [Nacked(type_url, nonce, blamed, subscription.last_error, certain)]

    def offer_again(self, type_url: str, name: str, version: str) -> None:
        """Let a content that the client refused be sent to it once more."""
        subscription = self._types.get(type_url)
        if subscription is not None and subscription.refused.get(name) == version:
            subscription.pardon(name)

    def responses(self, now: float) -> list[Any]:
        """Return the discovery responses to send now, in order; `now` in seconds, monotonic."""
        self.orphans.pass_time(now)
        if self._snapshot is None:
            return []
        ready: list[Any] = []
        for type_url in TYPE_URLS:
            response = self._respond(type_url, self._snapshot, now)
            if response is not None:
                ready.append(response)
        return ready

    def next_deadline(self) -> float | None:
        """Return when `responses` has news even if nothing arrives; None when it has not.

        A type whose last response is outstanding has none before its ACK, however long it waits.
        """
        waiting = [
            since
            for type_url, since in self._waiting_since.items()
            if self._types[type_url].outstanding is None
        ]
        deadlines = [since + ORDER_TIMEOUT_S for since in waiting]
        alarm = self.orphans.next_deadline()
        return min(deadlines if alarm is None else [*deadlines, alarm], default=None)

    def _respond(self, type_url: str, snapshot: Snapshot, now: float) -> Any | None:
        subscription = self._types.get(type_url)
        if subscription is None or subscription.outstanding is not None:
            return None
        current = snapshot.of_type(type_url)
        owed = subscription.owed(current)
        due = self._in_order(type_url, owed, snapshot, now)
        due = self._variant.complete(type_url, subscription, due, current)
        first_answer = subscription.wildcard and not subscription.greeted
        if not due and not (first_answer and not owed):
            return None
        nonce = self._make_nonce()
        if type_url == CLUSTER:
            self._force_endpoints(subscription, due, snapshot)
        subscription.sent(nonce, due)
        return self._variant.encode(type_url, nonce, due, subscription, current)

    def _in_order(self, type_url: str, owed: Changes, snapshot: Snapshot, now: float) -> Changes:
        """Return the part of what is owed that may leave before other types' ACKs."""
        due = self._unhindered(type_url, owed, snapshot) if owed else owed
        if due == owed:
            self._waiting_since.pop(type_url, None)
            return owed
        since = self._waiting_since.setdefault(type_url, now)
        if now < since + ORDER_TIMEOUT_S:  # as `next_deadline` reckons, to the last bit
            return due
        del self._waiting_since[type_url]
        return owed

    def _unhindered(self, type_url: str, owed: Changes, snapshot: Snapshot) -> Changes:
        if type_url == SECRET and owed.removed:
            held = any(self._awaits(holder, snapshot, removals=True) for holder in _HOLDERS)
            return replace(owed, removed=()) if held else owed
        if type_url in _ALONE:
            return owed
        if type_url in _USERS:
            late = any(self._awaits(used, snapshot, removals=False) for used in _USED)
            return Changes(unknown=owed.unknown) if late else owed
        late = any(self._awaits(user, snapshot, removals=True) for user in _USERS)
        return replace(owed, removed=()) if late else owed

    def _awaits(self, type_url: str, snapshot: Snapshot, *, removals: bool) -> bool:
        """Whether a type waits for an ACK or is still owed something."""
        subscription = self._types.get(type_url)
        if subscription is None:
            return False
        if subscription.outstanding is not None:
            return True
        owed = subscription.owed(snapshot.of_type(type_url))
        return bool(owed.resources or (removals and owed.removed))

    def _force_endpoints(self, clusters: Subscription, sent: Changes, snapshot: Snapshot) -> None:
        """A changed cluster warms until its endpoints come again, changed or not."""
        endpoints = self._types.get(ENDPOINT)
        if endpoints is None:
            return
        for cluster in sent.resources:
            if clusters.held.get(cluster.name) == cluster.version:
                continue  # Envoy sees that it is the same
            name = snapshot.eds_names.get(cluster.name)
            if name is not None and endpoints.covers(name):
                endpoints.forced.add(name)


def _is_stale(subscription: Subscription, request: Any) -> bool:
    """Whether a request knows nothing of the last response."""
    return subscription.responses > 0 and request.response_nonce != subscription.sent_nonce


def _check_bounds(names: Iterable[str]) -> None:
    for count, name in enumerate(names, start=1):
        if count > MAX_NAMES:
            raise StreamError("RESOURCE_EXHAUSTED", f"more than {MAX_NAMES} names in one request")
        if len(name.encode()) > MAX_NAME_BYTES:
            raise StreamError("INVALID_ARGUMENT", f"a name is longer than {MAX_NAME_BYTES} bytes")


def _news(versions: Mapping[str, str], held: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return what a response changed; what the client took before cannot be at fault."""
    return tuple(
        sorted((name, version) for name, version in versions.items() if held.get(name) != version)
    )


def _named(versions: Mapping[str, str], message: str) -> tuple[tuple[str, str], ...]:
    """Return the resources that Envoy's text names."""
    words = {word.strip(":.") for word in _ERROR_SEPARATORS.split(message)}
    return tuple(sorted((name, version) for name, version in versions.items() if name in words))

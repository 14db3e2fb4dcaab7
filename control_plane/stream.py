"""One incremental ADS stream as a state machine without I/O.

Requests and snapshots go in, responses come out; time is an argument. Order is make before break:
clusters, endpoints, listeners, routes, and removals of clusters after the routes that used them.
Endpoints never wait for the clusters' ACK, since Envoy holds that back until they arrive.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from envoy.service.discovery.v3 import discovery_pb2

from control_plane.errors import WattmeshError
from control_plane.snapshot import (
    CLUSTER,
    ENDPOINT,
    LISTENER,
    ROUTE,
    TYPE_URLS,
    WILDCARD_TYPES,
    Snapshot,
)
from control_plane.subscription import Changes, Subscription

MAX_NAMES = 100_000  # per stream and type
MAX_NAME_BYTES = 2048
ORDER_TIMEOUT_S = 5.0  # longest that one type waits for another's ACK
_ERROR_TAIL_CHARS = 500  # Envoy puts the reason behind a dump of the whole message
_NO_CHANGES = Changes()


class StreamError(WattmeshError):
    """A request that ends the stream; `status` names the gRPC status code."""

    def __init__(self, status: str, message: str) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Acked:
    """The client took a response."""

    type_url: str


@dataclass(frozen=True, slots=True)
class Nacked:
    """The client refused a response."""

    type_url: str
    nonce: str
    versions: tuple[tuple[str, str], ...]  # (name, version) that may be at fault
    message: str  # the tail of Envoy's text


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A request that changed what the client wants."""

    type_url: str


@dataclass(frozen=True, slots=True)
class Ignored:
    """A request that says nothing new: a stale nonce, or a type that is not served here."""

    type_url: str
    reason: str


Event = Acked | Nacked | Subscribed | Ignored


class AdsStream:
    """The protocol state of one stream."""

    def __init__(self, make_nonce: Callable[[], str]) -> None:
        self.node: Any = None  # envoy.config.core.v3.Node of the first request
        self._make_nonce = make_nonce
        self._snapshot: Snapshot | None = None
        self._types: dict[str, Subscription] = {}
        self._waiting_since: dict[str, float] = {}

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        """The state per type URL, for status reports."""
        return self._types

    def set_snapshot(self, snapshot: Snapshot) -> None:
        """Put new content in force; `responses` then tells what follows."""
        self._snapshot = snapshot

    def current_version(self, type_url: str, name: str) -> str | None:
        """Return the version that this stream should hold, None when there is no such resource."""
        current = self._snapshot.of_type(type_url).get(name) if self._snapshot else None
        return current.version if current else None

    def receive(self, request: Any) -> tuple[Event, ...]:
        """Take a DeltaDiscoveryRequest. Raise StreamError when the stream cannot go on."""
        self._identify(request)
        type_url = request.type_url
        if not type_url:
            raise StreamError("INVALID_ARGUMENT", "type_url is empty")
        _check_bounds(request)
        if type_url not in TYPE_URLS:
            return (Ignored(type_url, "not served here"),)
        subscription = self._types.get(type_url)
        if subscription is None:
            self._types[type_url] = Subscription.first(
                request.resource_names_subscribe,
                request.initial_resource_versions,
                may_be_wildcard=type_url in WILDCARD_TYPES,
            )
            return (Subscribed(type_url),)
        events = self._settle(subscription, request)
        if request.resource_names_subscribe or request.resource_names_unsubscribe:
            unsubscribe = frozenset(request.resource_names_unsubscribe)
            subscription.unsubscribe(sorted(unsubscribe))
            subscription.subscribe(request.resource_names_subscribe, unsubscribe)
            if len(subscription.names) > MAX_NAMES:
                raise StreamError("RESOURCE_EXHAUSTED", f"more than {MAX_NAMES} names subscribed")
            events.append(Subscribed(type_url))
        return tuple(events)

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
            return [Ignored(type_url, "stale nonce")]
        if not request.HasField("error_detail"):
            subscription.acknowledged()
            return [Acked(type_url)]
        message = request.error_detail.message
        subscription.rejected(message[-_ERROR_TAIL_CHARS:])
        versions = tuple(sorted(outstanding.versions.items()))
        blamed = tuple(item for item in versions if item[0] in message)
        return [Nacked(type_url, nonce, blamed or versions, message[-_ERROR_TAIL_CHARS:])]

    def responses(self, now: float) -> list[Any]:
        """Return the DeltaDiscoveryResponses to send now, in order; `now` in seconds, monotonic."""
        if self._snapshot is None:
            return []
        ready: list[Any] = []
        for type_url in TYPE_URLS:
            response = self._respond(type_url, self._snapshot, now)
            if response is not None:
                ready.append(response)
        return ready

    def next_deadline(self) -> float | None:
        """Return when `responses` has news even if nothing arrives; None when it has not."""
        if not self._waiting_since:
            return None
        return min(self._waiting_since.values()) + ORDER_TIMEOUT_S

    def _respond(self, type_url: str, snapshot: Snapshot, now: float) -> Any | None:
        subscription = self._types.get(type_url)
        if subscription is None or subscription.outstanding is not None:
            return None
        owed = subscription.owed(snapshot.of_type(type_url))
        due = self._in_order(type_url, owed, snapshot, now)
        first_answer = subscription.wildcard and not subscription.greeted
        if not due and not (first_answer and not owed):
            return None
        nonce = self._make_nonce()
        subscription.sent(nonce, due)
        if type_url == CLUSTER:
            self._force_endpoints(due, snapshot)
        return _response(type_url, nonce, due)

    def _in_order(self, type_url: str, owed: Changes, snapshot: Snapshot, now: float) -> Changes:
        """Return the part of what is owed that may leave before other types' ACKs."""
        if type_url in (LISTENER, ROUTE):
            held_back = owed if self._busy((CLUSTER, ENDPOINT), snapshot) else _NO_CHANGES
            due = _NO_CHANGES if held_back else owed
        else:
            held_back = Changes(removed=owed.removed)
            if not self._busy((LISTENER, ROUTE), snapshot):
                held_back = _NO_CHANGES
            due = Changes(owed.resources) if held_back else owed
        if not held_back:
            self._waiting_since.pop(type_url, None)
            return due
        since = self._waiting_since.setdefault(type_url, now)
        if now - since < ORDER_TIMEOUT_S:
            return due
        del self._waiting_since[type_url]
        return owed

    def _busy(self, type_urls: tuple[str, ...], snapshot: Snapshot) -> bool:
        """Whether one of these types waits for an ACK or has additions to send."""
        for type_url in type_urls:
            subscription = self._types.get(type_url)
            if subscription is None:
                continue
            if subscription.outstanding is not None:
                return True
            if subscription.owed(snapshot.of_type(type_url)).resources:
                return True
        return False

    def _force_endpoints(self, sent: Changes, snapshot: Snapshot) -> None:
        """A changed cluster warms until its endpoints come again, changed or not."""
        endpoints = self._types.get(ENDPOINT)
        if endpoints is None:
            return
        for cluster in sent.resources:
            name = snapshot.eds_names.get(cluster.name)
            if name is not None and name in endpoints.names:
                endpoints.forced.add(name)


def _check_bounds(request: Any) -> None:
    names = (*request.resource_names_subscribe, *request.resource_names_unsubscribe)
    if len(names) > MAX_NAMES or len(request.initial_resource_versions) > MAX_NAMES:
        raise StreamError("RESOURCE_EXHAUSTED", f"more than {MAX_NAMES} names in one request")
    if any(len(name) > MAX_NAME_BYTES for name in names):
        raise StreamError("INVALID_ARGUMENT", f"a name is longer than {MAX_NAME_BYTES} bytes")


def _response(type_url: str, nonce: str, changes: Changes) -> Any:
    return discovery_pb2.DeltaDiscoveryResponse(
        type_url=type_url,
        nonce=nonce,
        resources=[
            discovery_pb2.Resource(name=item.name, version=item.version, resource=item.body)
            for item in changes.resources
        ],
        removed_resources=changes.removed,
    )

"""The discovery services over grpc.aio: sockets and tasks around `AdsStream`.

Streams are refused as UNAVAILABLE until a plan is in force, so that no Envoy ever mistakes "not
known yet" for "gone".
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import grpc
import structlog
from envoy.service.discovery.v3 import ads_pb2_grpc

from control_plane.addresses import AddressError, HostPort, UnixSocket
from control_plane.canary_forms import proves
from control_plane.canary_wave import Envoy, candidate
from control_plane.connect_rate import ConnectBucket, ConnectRate
from control_plane.errors import InputError
from control_plane.health_service import HealthService
from control_plane.metrics import Metrics
from control_plane.mtls.files import TlsSource
from control_plane.mtls.server import grpc_credentials, grpc_peer
from control_plane.mtls.spiffe import Identity, IdentityError, check_asks_for_itself
from control_plane.orphans import ORPHAN_S
from control_plane.quarantine import Refusal
from control_plane.resources import View, parse_view
from control_plane.snapshot import Snapshot
from control_plane.store import Store
from control_plane.stream import (
    NOT_SERVED,
    Acked,
    AdsStream,
    Event,
    Ignored,
    Nacked,
    StreamError,
    Subscribed,
)
from control_plane.type_services import type_services
from control_plane.variants import DELTA, STATE_OF_THE_WORLD, Variant
from control_plane.xds_status import StreamStatus, stream_status
from engines.sockets import SOCKET_UMASK, claim_socket

logger = structlog.get_logger()

_MAX_REQUEST_BYTES = 4 * 1024 * 1024
_MAX_STREAMS = 10_000
_STOP_GRACE_S = 1.0
_MAX_NODE_CHARS = 200
_ALARM_BYTES = 3 * 1024 * 1024  # clients on Google's gRPC refuse messages above 4 MiB
_MAX_LOGGED = 20  # resources, or unknown types, of one stream
_MAX_QUEUED = 32  # requests of a stream that are read before one is answered
_QUEUED_S = 0.002  # in which a request that lies there already is read
_TURNS = 4  # of the event loop, from a message's arrival to the end of its read
_LOG_EVERY_S = 60.0  # streams that are turned away
_KINDS = {Acked: "ack", Nacked: "nack", Subscribed: "subscribe", Ignored: "stale"}
# An Envoy that holds everything is sent nothing when it reconnects; so now and then it moves, and
# replicas that were added get their part. gRPC spreads the moment by a tenth either way.
_CONNECTION_AGE_S = 30 * 60.0
_AGE_GRACE_S = 5.0  # that streams have to end by themselves; Envoy's never do
_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
    ("grpc.max_concurrent_streams", _MAX_STREAMS),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0),
)


@dataclass(slots=True)
class _Connection:
    """What the shell knows about one stream besides its protocol state."""

    connected_since: float  # seconds since the epoch
    peer: Identity | None = None  # who the client certificate names; None without TLS
    view: View | None = None  # known from the first request on
    unknown_types: set[str] = field(default_factory=set)  # logged already


class AdsService(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):  # type: ignore[misc]
    """Serves every stream from one store."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        tls: TlsSource | None = None,
        *,
        connect_rate: ConnectRate = ConnectRate(),  # noqa: B008 a frozen value
        queued_s: float = _QUEUED_S,
        route_grace_s: float = 0.0,
        quiet: bool = False,
    ) -> None:
        """`quiet` is for streams that come and go all the time: nothing is told of them."""
        self._quiet = quiet
        self._route_grace_s = route_grace_s
        self._queued_s = queued_s
        self._connects = ConnectBucket(connect_rate)
        self._turned_away_at = float("-inf")  # logged last
        self._store = store
        self.health = HealthService(lambda: store.unready is None, store.bell)
        self._metrics = metrics
        self._tls = tls
        self._streams: dict[AdsStream, _Connection] = {}
        self._largest_bytes: dict[str, int] = {}
        self.on_edges: Callable[[tuple[str, ...]], None] = lambda _edges: None
        store.envoys = self._candidates
        store.on_cleared = self._offer_again

    def view_of(self, node: str) -> View | None:
        """Return the view of a connected Envoy, by its node ID."""
        return next(
            (
                connection.view
                for stream, connection in self._streams.items()
                if connection.view is not None and stream.node.id == node
            ),
            None,
        )

    def edges(self) -> tuple[str, ...]:
        """Return the node IDs of the edges that are connected, each once, sorted."""
        return tuple(
            sorted(
                {
                    stream.node.id
                    for stream, connection in self._streams.items()
                    if connection.view is not None and connection.view.role == "edge"
                }
            )
        )

    def uses(self, view: View) -> bool:
        """Whether any stream is served this view."""
        return any(connection.view == view for connection in self._streams.values())

    def status(self) -> list[StreamStatus]:
        """Return the state of every open stream, sorted by node."""
        statuses = [
            stream_status(stream, connection.view.role, connection.connected_since)
            for stream, connection in self._streams.items()
            if connection.view is not None
        ]
        return sorted(statuses, key=lambda status: (status.role, status.node))

    def _candidates(self, role: str) -> Iterator[Envoy]:
        """Yield the Envoys of a role that may try a change before the others."""
        for stream, connection in self._streams.items():
            if connection.view is not None and connection.view.role == role:
                envoy = candidate(stream, connection.view)
                if envoy is not None:
                    yield envoy

    def _offer_again(self, refusals: Iterable[Refusal]) -> None:
        for stream in self._streams:
            for item in refusals:
                stream.offer_again(item.type_url, item.name, item.version)

    def _streams_of(self, view: View, node: str) -> list[AdsStream]:
        return [
            stream
            for stream, connection in self._streams.items()
            if connection.view == view and stream.node.id == node
        ]

    async def StreamAggregatedResources(  # noqa: N802 named by the protocol
        self, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[Any]:
        """Serve one client of the state-of-the-world variant."""
        async with contextlib.aclosing(
            self.serve(requests, context, STATE_OF_THE_WORLD)
        ) as responses:
            async for response in responses:
                yield response

    async def DeltaAggregatedResources(  # noqa: N802 named by the protocol
        self, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[Any]:
        """Serve one client of the incremental variant, as our Envoys are."""
        async with contextlib.aclosing(self.serve(requests, context, DELTA)) as responses:
            async for response in responses:
                yield response

    async def serve(
        self,
        requests: AsyncIterator[Any],
        context: Any,
        variant: Variant,
        only_type: str | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Serve one client until it goes or breaks the protocol."""
        unready = self._store.unready
        if unready is not None:
            await _abort(context, "UNAVAILABLE", unready)
        peer = await self._peer(context)
        await self._wait_for_turn(context)
        stream = AdsStream(
            lambda: secrets.token_hex(8), variant, only_type, route_grace_s=self._route_grace_s
        )
        self._streams[stream] = _Connection(time.time(), peer)
        try:
            async for response in self._serve(stream, requests, context):
                yield response
        finally:
            self._close(stream)

    async def _peer(self, context: Any) -> Identity | None:
        """Return who opens a stream over TLS; refuse who is nobody of our trust domain."""
        if self._tls is None:
            return None
        try:
            peer = grpc_peer(context.auth_context())
        except IdentityError as error:
            logger.warning("stream refused", status="UNAUTHENTICATED", reason=str(error))
            await _abort(context, "UNAUTHENTICATED", str(error))
        ours = self._tls.current.identity.trust_domain
        if peer is not None and peer.trust_domain != ours:
            reason = f"{peer} is not of the trust domain {ours}"
            logger.warning("stream refused", status="PERMISSION_DENIED", reason=reason)
            await _abort(context, "PERMISSION_DENIED", reason)
        return peer

    async def _wait_for_turn(self, context: Any) -> None:
        """Let a new stream wait while too many open at once; turn it away if it would be long."""
        now = time.monotonic()
        wait_s = self._connects.take(now)
        if wait_s is None:
            self._metrics.xds_new_streams.labels("refused").inc()
            if now >= self._turned_away_at + _LOG_EVERY_S:
                self._turned_away_at = now
                logger.warning("too many streams open at once, some are told to come again")
            await _abort(context, "RESOURCE_EXHAUSTED", "too many streams open, come again later")
        self._metrics.xds_new_streams.labels("delayed" if wait_s else "at_once").inc()
        if wait_s:
            await asyncio.sleep(wait_s)

    async def _serve(
        self, stream: AdsStream, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[Any]:
        reader = asyncio.ensure_future(anext(requests, None))
        view: View | None = None
        bell = self._store.bell()
        ringing = asyncio.ensure_future(bell.wait())
        try:
            while True:
                await _first_of(reader, ringing, deadline=self._next_deadline(stream, view))
                for _ in range(_MAX_QUEUED):  # the newest of several is what is answered
                    if not reader.done():
                        break
                    request = reader.result()
                    if request is None:
                        return
                    view = await self._take(stream, view, request, context)
                    reader = asyncio.ensure_future(anext(requests, None))
                    if stream.asks(request):
                        await _read_queued(reader, self._queued_s)
                if ringing.done():
                    bell = self._store.bell()
                    ringing = asyncio.ensure_future(bell.wait())
                if view is not None:
                    for response in self._responses(stream, view):
                        yield response
        finally:
            reader.cancel()
            ringing.cancel()

    async def _take(
        self, stream: AdsStream, view: View | None, request: Any, context: Any
    ) -> View | None:
        """Feed one request; return the stream's view, known from the first request on."""
        try:
            events = stream.receive(request)
            if view is None:
                view = parse_view(stream.node)
                peer = self._streams[stream].peer
                if peer is not None:
                    check_asks_for_itself(peer, stream.node.id, view.role)
                self._open(stream, view)
        except StreamError as error:
            await self._refuse(stream, context, error.status, str(error))
        except InputError as error:
            await self._refuse(stream, context, "INVALID_ARGUMENT", str(error))
        except IdentityError as error:
            await self._refuse(stream, context, "PERMISSION_DENIED", str(error))
        for event in events:
            self._note(stream, event)
        return view

    def _next_deadline(self, stream: AdsStream, view: View | None) -> float | None:
        deadlines = (stream.next_deadline(), self._store.next_deadline(view) if view else None)
        return min((at_s for at_s in deadlines if at_s is not None), default=None)

    def _responses(self, stream: AdsStream, view: View) -> list[Any]:
        snapshot = self._store.snapshot(view, stream.node.id)
        if snapshot is not None:
            stream.set_snapshot(snapshot)
        responses = stream.responses(time.monotonic())
        if stream.orphans.due:
            self._note_orphan(stream, view)
        if snapshot is not None and self._store.awaits(view, stream.node.id):
            self._prove(stream, view, snapshot)
        for response in responses:
            kind = _short(response.type_url)
            self._metrics.xds_responses.labels(kind).inc()
            self._metrics.xds_resources.labels(kind).inc(len(response.resources))
            self._note_size(stream, kind, response.ByteSize())
        return responses

    def _note_orphan(self, stream: AdsStream, view: View) -> None:
        stream.orphans.due = False
        self._metrics.xds_orphaned.inc()
        logger.warning(
            "Envoy resumed its endpoints and asks for no clusters, it may be stuck",
            node=stream.node.id,
            role=view.role,
            after_s=ORPHAN_S,
        )

    def _prove(self, stream: AdsStream, view: View, snapshot: Snapshot) -> None:
        """Let the others go on once a canary took all of a change."""
        if proves(self._streams_of(view, stream.node.id), snapshot):
            self._store.note_proven(view, stream.node.id)

    def _note_size(self, stream: AdsStream, kind: str, size_bytes: int) -> None:
        """Record the largest response of each type, and say when one comes near the limit."""
        if size_bytes <= self._largest_bytes.get(kind, 0):
            return
        self._largest_bytes[kind] = size_bytes
        self._metrics.xds_largest_response.labels(kind).set(size_bytes)
        if size_bytes > _ALARM_BYTES:
            logger.warning(
                "a response is near the 4 MiB that some clients refuse",
                node=stream.node.id,
                type=kind,
                size_bytes=size_bytes,
            )

    def _open(self, stream: AdsStream, view: View) -> None:
        self._streams[stream].view = view
        self._metrics.xds_streams.labels(view.role).inc()
        if not self._quiet:
            logger.info("Envoy connected", node=stream.node.id, role=view.role)
        if view.role == "edge":
            self.on_edges(self.edges())

    def _close(self, stream: AdsStream) -> None:
        view = self._streams.pop(stream).view
        if view is None:
            return
        self._metrics.xds_streams.labels(view.role).dec()
        if not self._quiet:
            logger.info("Envoy gone", node=stream.node.id, role=view.role)
        if view.role == "edge":
            self.on_edges(self.edges())
        node = stream.node.id
        if self._store.concerns(view, node) and not self._streams_of(view, node):
            self._store.note_unfit(view, node)
        if all(other.view != view for other in self._streams.values()):
            self._store.forget(view)

    async def _refuse(self, stream: AdsStream, context: Any, status: str, reason: str) -> NoReturn:
        node = stream.node.id[:_MAX_NODE_CHARS] if stream.node is not None else ""
        logger.warning("stream refused", node=node, status=status, reason=reason)
        await _abort(context, status, reason)

    def _note(self, stream: AdsStream, event: Event) -> None:
        if isinstance(event, Ignored) and event.reason == NOT_SERVED:
            # One label for all: a client could make up types without end.
            self._metrics.xds_requests.labels("other", "unknown_type").inc()
            self._log_unknown(stream, event.type_url)
            return
        self._metrics.xds_requests.labels(_short(event.type_url), _KINDS[type(event)]).inc()
        view = self._streams[stream].view
        if isinstance(event, Acked) and view is not None:
            self._store.note_acked(view, event.type_url, event.resources)
        if isinstance(event, Nacked):
            if view is not None:
                self._store.note_refused(view, event, node=stream.node.id, at_s=time.time())
            logger.warning(
                "Envoy refused a response, its content is not sent again",
                node=stream.node.id,
                type=_short(event.type_url),
                nonce=event.nonce,
                resources=dict(event.versions[:_MAX_LOGGED]),
                count=len(event.versions),
                reason=event.message,
            )

    def _log_unknown(self, stream: AdsStream, type_url: str) -> None:
        logged = self._streams[stream].unknown_types
        if type_url not in logged and len(logged) < _MAX_LOGGED:
            logged.add(type_url)
            logger.info("type not served, ignored", node=stream.node.id, type=type_url[:200])


@contextlib.asynccontextmanager
async def serve_ads(
    service: AdsService,
    addresses: Sequence[UnixSocket | HostPort],
    tls: TlsSource | None = None,
    *,
    connection_age_s: float = _CONNECTION_AGE_S,
) -> AsyncIterator[None]:
    """Serve ADS and its health on every address while the context is open.

    Unix sockets get mode 0660. With TLS, TCP addresses take clients with a certificate of our CAs
    and nobody else. Raise AddressError or SocketError when an address cannot be listened on.
    """
    options = (
        *_OPTIONS,
        ("grpc.max_connection_age_ms", int(connection_age_s * 1000)),
        ("grpc.max_connection_age_grace_ms", int(min(_AGE_GRACE_S, connection_age_s / 4) * 1000)),
    )
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MAX_STREAMS)
    service.health.add_to(server)
    ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(service, server)
    server.add_generic_rpc_handlers(type_services(service.serve))
    sockets = [Path(address.path) for address in addresses if isinstance(address, UnixSocket)]
    with _umask(SOCKET_UMASK):  # gRPC binds at once, so the sockets never are open to others
        for address in addresses:
            if isinstance(address, UnixSocket):
                claim_socket(address.path)
            try:
                if tls is None or isinstance(address, UnixSocket):
                    server.add_insecure_port(str(address))
                else:
                    server.add_secure_port(str(address), grpc_credentials(tls))
            except RuntimeError as error:
                raise AddressError(f"xDS address {address}: {error}") from error
    await server.start()
    try:
        yield
    finally:
        await server.stop(_STOP_GRACE_S)
        for path in sockets:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


async def _first_of(*tasks: "asyncio.Future[Any]", deadline: float | None) -> None:
    timeout_s = None if deadline is None else max(0.0, deadline - time.monotonic())
    await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


async def _read_queued(reader: "asyncio.Future[Any]", within_s: float) -> None:
    """Let a read end if its request lies there already; gRPC cannot be asked whether one does."""
    await asyncio.wait((reader,), timeout=within_s)
    for _ in range(_TURNS):  # a loop that was busy meanwhile sees what came only now
        if reader.done():
            return
        await asyncio.sleep(0)


async def _abort(context: Any, status: str, message: str) -> NoReturn:
    await context.abort(getattr(grpc.StatusCode, status), message)
    raise AssertionError("abort returned")  # it raises; this line tells the type checker


def _short(type_url: str) -> str:
    return type_url.rpartition(".")[2]

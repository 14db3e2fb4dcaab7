"""xDS over REST: each type polled by itself, as canonical proto3 JSON.

For clients that speak no gRPC, and for looking at what an Envoy would get with curl. A poll with
the version that is current is answered with 304; an empty set is an empty list, never a 404. The
protocol has no NACK and no order between types: our Envoys use ADS.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import json_format

from control_plane.access import context_of, peer_of
from control_plane.addresses import HostPort
from control_plane.errors import InputError, WattmeshError
from control_plane.mtls.files import TlsSource
from control_plane.mtls.spiffe import IdentityError, check_asks_for_itself
from control_plane.resources import View, parse_view
from control_plane.snapshot import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    ROUTE,
    RUNTIME,
    SECRET,
    WILDCARD_TYPES,
    Snapshot,
    VersionedResource,
)
from control_plane.store import SnapshotStore
from control_plane.subscription import WILDCARD
from control_plane.variants import version_of

_MAX_REQUEST_BYTES = 1024 * 1024  # an Envoy's node with all its extensions takes some 80 kB
_MAX_NAMES = 10_000
_MAX_POLLED = 256  # views that only polls ask for
_STOP_GRACE_S = 1.0
_PATHS = {
    "clusters": CLUSTER,
    "endpoints": ENDPOINT,
    "listeners": LISTENER,
    "routes": ROUTE,
    "runtime": RUNTIME,
    "extension_configs": EXTENSION,
    "secrets": SECRET,
}


class PollError(WattmeshError):
    """A body that asks for nothing we have."""


@asynccontextmanager
async def serve_rest(
    store: SnapshotStore,
    address: HostPort,
    tls: TlsSource | None = None,
    streamed: Callable[[View], bool] = lambda _view: False,
) -> AsyncIterator[None]:
    """Serve the REST variant while the context is open. With TLS a node asks for itself alone.

    `streamed` tells whether a view is served to a stream, too: what only polls ask for is kept for
    the latest of them alone, since nobody says when a poller is gone.
    """
    app = build_rest(store, tls, streamed)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_GRACE_S)
    await runner.setup()
    try:
        context = context_of(address, tls)
        await web.TCPSite(runner, address.host, address.port, ssl_context=context).start()
        yield
    finally:
        await runner.cleanup()


def build_rest(
    store: SnapshotStore,
    tls: TlsSource | None = None,
    streamed: Callable[[View], bool] = lambda _view: False,
) -> web.Application:
    """Return the application."""
    polled = _Polled(store, streamed)
    app = web.Application(client_max_size=_MAX_REQUEST_BYTES)
    for path, type_url in _PATHS.items():
        app.router.add_post(f"/v3/discovery:{path}", _Discovery(polled, type_url, tls).answer)
    return app


class _Polled:
    """What is kept for pollers: the views of the latest ones."""

    def __init__(self, store: SnapshotStore, streamed: Callable[[View], bool]) -> None:
        self._store = store
        self._streamed = streamed
        self._views: dict[View, None] = {}  # polled last comes last

    def snapshot(self, view: View) -> Snapshot | None:
        """Return what a view is served, and forget the view that was polled longest ago."""
        self._views.pop(view, None)
        self._views[view] = None
        if len(self._views) > _MAX_POLLED:
            oldest = next(iter(self._views))
            del self._views[oldest]
            if not self._streamed(oldest):
                self._store.forget(oldest)
        return self._store.snapshot(view)


class _Discovery:
    """The handler of one type."""

    def __init__(self, polled: "_Polled", type_url: str, tls: TlsSource | None) -> None:
        self._polled = polled
        self._type_url = type_url
        self._tls = tls

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a poll."""
        try:
            asked = _parse(await request.read(), self._type_url)
            view = parse_view(asked.node)
            if self._tls is not None:
                check_asks_for_itself(peer_of(request, self._tls), asked.node.id, view.role)
        except (PollError, InputError) as error:
            return _refusal(400, str(error))
        except IdentityError as error:
            return _refusal(403, str(error))
        wanted = self._wanted(view, list(asked.resource_names))
        if wanted is None:
            return _refusal(503, "the catalog was not read completely yet")
        version = version_of(wanted)
        if version == asked.version_info:
            return web.Response(status=304)
        body = await asyncio.to_thread(_render, self._type_url, version, wanted)
        return web.Response(body=body, content_type="application/json")

    def _wanted(self, view: View, names: list[str]) -> list[VersionedResource] | None:
        """Return the resources asked for, sorted by name; None while nothing is known."""
        snapshot = self._polled.snapshot(view)
        if snapshot is None:
            return None
        current = snapshot.of_type(self._type_url)
        everything = WILDCARD in names or (not names and self._type_url in WILDCARD_TYPES)
        return [item for name, item in current.items() if everything or name in names]


def _parse(data: bytes, type_url: str) -> Any:
    """Return the DiscoveryRequest of a poll. Raise PollError when it is none for this type."""
    try:
        value = msgspec.json.decode(data)
        if not isinstance(value, dict):
            raise PollError("the body is no DiscoveryRequest: expected an object")
        asked = json_format.ParseDict(
            value, discovery_pb2.DiscoveryRequest(), ignore_unknown_fields=True
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PollError(f"the body is no JSON: {error}") from error
    except json_format.ParseError as error:
        raise PollError(f"the body is no DiscoveryRequest: {str(error)[:200]}") from error
    if asked.type_url not in ("", type_url):
        raise PollError(f"type_url: expected {type_url} or none")
    if len(asked.resource_names) > _MAX_NAMES:
        raise PollError(f"resource_names: more than {_MAX_NAMES}")
    return asked


def _render(type_url: str, version: str, resources: list[VersionedResource]) -> bytes:
    return msgspec.json.encode(
        {
            "version_info": version,
            "type_url": type_url,
            "resources": [json_format.MessageToDict(item.body) for item in resources],
        }
    )


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)

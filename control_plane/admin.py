"""The admin API: what the control plane knows and does, on its own address.

It is read-only but for named actions, which take a JSON body: no page in a browser can send one
across origins without asking first.

Who may ask what stands in `access`. Errors are JSON, like the answers. It never holds a prompt,
because the control plane never sees one.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from control_plane.access import check_admin, context_of
from control_plane.addresses import HostPort, UnixSocket
from control_plane.canary_wave import Hold
from control_plane.errors import Problem, shown
from control_plane.explain import Explanation
from control_plane.fleet import Fleet
from control_plane.guard import GuardState
from control_plane.metrics import Metrics
from control_plane.mtls.files import TlsSource
from control_plane.mtls.spiffe import IdentityError
from control_plane.plan import Plan
from control_plane.plan_view import fleet_to_json, plan_to_json
from control_plane.quarantine import Refusal
from control_plane.snapshot import Snapshot
from control_plane.xds_status import (
    StreamStatus,
    canary_to_json,
    refusal_to_json,
    snapshot_to_json,
)
from engines.sockets import SOCKET_UMASK, claim_socket

logger = structlog.get_logger()

_STOP_GRACE_S = 1.0


class Observed(Protocol):
    """What the admin API shows; the control plane is it."""

    metrics: Metrics
    guard: GuardState
    fleet: Fleet | None
    streams: Callable[[], list[StreamStatus]]

    @property
    def plan(self) -> Plan | None: ...
    def not_ready(self) -> str | None: ...
    def problems(self) -> tuple[Problem, ...]: ...
    def explain(self, subject: str) -> tuple[Explanation, ...]: ...
    def quarantined(self) -> tuple[Refusal, ...]: ...
    def clear_quarantine(self, version: str | None) -> tuple[Refusal, ...]: ...
    def held(self) -> tuple[Hold, ...]: ...
    def served(self, node: str) -> Snapshot | None: ...


@contextlib.asynccontextmanager
async def serve_admin(
    plane: Observed, address: UnixSocket | HostPort, tls: TlsSource | None = None
) -> AsyncIterator[None]:
    """Serve the admin API while the context is open; its socket is gone afterwards."""
    app = build_admin(plane)
    app.middlewares.append(_authorized(address, tls))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_GRACE_S)
    await runner.setup()
    removal = contextlib.ExitStack()  # of a socket that is ours: one of somebody else stays
    try:
        if isinstance(address, UnixSocket):
            bound = _bind(address.path)
            removal.callback(Path(address.path).unlink, missing_ok=True)
            await web.SockSite(runner, bound).start()
        else:
            context = context_of(address, tls)
            await web.TCPSite(runner, address.host, address.port, ssl_context=context).start()
        yield
    finally:
        await runner.cleanup()
        removal.close()


def _bind(path: str) -> socket.socket:
    """Return a bound socket that never was open to others, not even between two calls."""
    claim_socket(path)
    umask = os.umask(SOCKET_UMASK)
    try:
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(path)
    finally:
        os.umask(umask)
    return bound


def build_admin(plane: Observed) -> web.Application:
    """Return the application."""
    api = _Admin(plane)
    app = web.Application(middlewares=[_errors_as_json])
    app.router.add_get("/ready", api.ready)
    app.router.add_get("/metrics", api.metrics)
    app.router.add_get("/v1/fleet", api.fleet)
    app.router.add_get("/v1/plan", api.plan)
    app.router.add_get("/v1/explain/{subject:.+}", api.explain)
    app.router.add_get("/v1/xds/status", api.xds_status)
    app.router.add_get("/v1/xds/resources/{node}", api.xds_resources)
    app.router.add_post("/v1/xds/quarantine/clear", api.clear_quarantine)
    return app


class _Admin:
    """The handlers."""

    def __init__(self, plane: Observed) -> None:
        self._plane = plane

    async def ready(self, _request: web.Request) -> web.Response:
        reason = self._plane.not_ready()
        problems = [str(problem) for problem in self._plane.problems()]
        body = {"ready": reason is None, "reason": reason, "problems": problems}
        return _json(body, status=200 if reason is None else 503)

    async def metrics(self, _request: web.Request) -> web.Response:
        text = generate_latest(self._plane.metrics.registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def fleet(self, _request: web.Request) -> web.Response:
        fleet, guard = self._plane.fleet, self._plane.guard
        if fleet is None:
            return self._not_ready()
        return _json(await asyncio.to_thread(fleet_to_json, fleet, guard))

    async def plan(self, _request: web.Request) -> web.Response:
        plan = self._plane.plan
        return (
            self._not_ready()
            if plan is None
            else _json(await asyncio.to_thread(plan_to_json, plan))
        )

    async def explain(self, request: web.Request) -> web.Response:
        if self._plane.plan is None:
            return self._not_ready()
        subject = request.match_info["subject"]
        found = await asyncio.to_thread(self._plane.explain, subject)
        if not found:
            return _error(404, "not_found", f"no model and no engine is named {shown(subject)}")
        return _json([dataclasses.asdict(item) for item in found])

    async def xds_status(self, _request: web.Request) -> web.Response:
        return _json(
            {
                "streams": [dataclasses.asdict(stream) for stream in self._plane.streams()],
                "quarantined": _refusals(self._plane.quarantined()),
                "canary": canary_to_json(self._plane.held()),
            }
        )

    async def xds_resources(self, request: web.Request) -> web.Response:
        node = request.match_info["node"]
        snapshot = self._plane.served(node)
        if snapshot is None:
            known = f"no Envoy and no node is named {shown(node)}"
            return (
                self._not_ready() if self._plane.plan is None else _error(404, "not_found", known)
            )
        return _json(await asyncio.to_thread(snapshot_to_json, snapshot))

    async def clear_quarantine(self, request: web.Request) -> web.Response:
        """Offer a refused content again: {"version": HASH}, or everything: {"all": true}."""
        if request.content_type != "application/json":
            return _error(415, "unsupported_media_type", "expected content-type application/json")
        body = _parse_json(await request.read())
        if body == {"all": True}:
            return _json({"cleared": _refusals(self._plane.clear_quarantine(None))})
        version = body.get("version") if isinstance(body, dict) and len(body) == 1 else None
        if not isinstance(version, str) or not version:
            expected = 'expected {"version": HASH} or {"all": true}'
            return _error(400, "bad_request", f"the body is {shown(body)}, {expected}")
        cleared = self._plane.clear_quarantine(version)
        if not cleared:
            return _error(404, "not_found", f"no version {shown(version)} is quarantined")
        return _json({"cleared": _refusals(cleared)})

    def _not_ready(self) -> web.Response:
        return _error(503, "not_ready", self._plane.not_ready() or "not ready")


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _authorized(address: UnixSocket | HostPort, tls: TlsSource | None) -> Middleware:
    @web.middleware
    async def authorized(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            check_admin(request, address, tls)
        except IdentityError as error:
            logger.warning("admin request refused", path=request.path[:200], reason=str(error))
            return _error(403, "forbidden", str(error))
        return await handler(request)

    return authorized


def _refusals(refusals: Iterable[Refusal]) -> list[dict[str, object]]:
    return [refusal_to_json(item) for item in refusals]


def _parse_json(data: bytes) -> Any:
    """Return the value of a body, None for what is no JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        code = error.reason.lower().replace(" ", "_")
        answer = _error(error.status, code, f"{request.method} {request.path}: {error.reason}")
        if "Allow" in error.headers:
            answer.headers["Allow"] = error.headers["Allow"]
        return answer


def _error(status: int, code: str, message: str) -> web.Response:
    return _json({"error": {"code": code, "message": message}}, status=status)


def _json(body: Any, *, status: int = 200) -> web.Response:
    return web.json_response(body, status=status, dumps=json.dumps)

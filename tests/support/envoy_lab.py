"""Real Envoys in front of engines that only echo: for what Envoy does to requests and answers.

The ADS server runs in the test's own event loop and publishes plans that the test makes; there is
no Consul and no agent. What an engine received, byte for byte, comes back in its answer.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from control_plane.addresses import HostPort, UnixSocket
from control_plane.ads import AdsService, serve_ads
from control_plane.bootstrap import render_bootstrap
from control_plane.metrics import Metrics
from control_plane.mtls.files import TlsSource
from control_plane.plan import Plan
from control_plane.resources import View, build_resources
from control_plane.snapshot import Snapshot, make_snapshot
from control_plane.store import Render, SnapshotStore
from control_plane.stream import ROUTE_GRACE_S
from tests.support import paths
from tests.support.envoy import EnvoyAdmin
from tests.support.eventually import eventually
from tests.support.ports import free_ports


class Lab:
    """An ADS server, its Envoys and its echoing engines, below one directory."""

    def __init__(
        self,
        root: Path,
        render: Render,
        tls: TlsSource | None,
        addresses: Sequence[HostPort],
    ) -> None:
        self.root = root
        self._render, self._tls, self._addresses = render, tls, tuple(addresses)
        self.route_grace_s = ROUTE_GRACE_S
        self._serving = contextlib.AsyncExitStack()
        self._know_nothing()
        self.edge_port, self.node_port = free_ports(2)
        self.received: list[web.Request] = []

    def _know_nothing(self) -> None:
        self.metrics = Metrics()
        self.store = SnapshotStore(self._render, self.metrics)
        self.service = AdsService(
            self.store, self.metrics, self._tls, route_grace_s=self.route_grace_s
        )

    async def start_serving(self) -> None:
        """Serve ADS on the lab's socket, and over TLS on its further addresses."""
        addresses = [UnixSocket(str(self.root / "xds.sock")), *self._addresses]
        await self._serving.enter_async_context(serve_ads(self.service, addresses, self._tls))

    async def stop_serving(self) -> None:
        """End the ADS server. One that is started again knows nothing, as a restarted process."""
        await self._serving.aclose()
        self._know_nothing()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.edge_port}"

    def socket(self, engine: str) -> str:
        """Return the path of an engine's socket."""
        return str(self.root / f"{engine}.sock")

    def admin(self, name: str) -> EnvoyAdmin:
        """Return the admin API of an Envoy."""
        return EnvoyAdmin(str(self.root / f"{name}.admin"))

    async def stats(self, name: str) -> dict[str, int]:
        """Return an Envoy's counters, without holding up the loop that serves it."""
        return await asyncio.to_thread(self.admin(name).stats)

    async def publish(self, plan: Plan) -> None:
        """Put a plan in force and wait until every connected Envoy has it."""
        self.store.publish(plan)
        await asyncio.sleep(0.05)
        await eventually(self._all_synced, within_s=10)

    def _all_synced(self) -> bool:
        streams = self.service.status()
        return not self.store.held and all(
            kind.state == "SYNCED" for stream in streams for kind in stream.types
        )

    async def _echo(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/health":
            return web.Response()
        if request.path == "/metrics":
            return web.Response(text="vllm:num_requests_running 0\n")
        self.received.append(request)
        body = await request.read()
        seen = {
            "path": request.path_qs,
            "bytes": len(body),
            "headers": {name.lower(): value for name, value in request.headers.items()},
        }
        if len(body) < 4096:
            seen["body"] = body.decode(errors="replace")
        return web.json_response(seen)

    @contextlib.asynccontextmanager
    async def engine(self, name: str, *, keep_alive_s: float = 5.0) -> AsyncIterator[None]:
        """Serve an echoing engine on its socket."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._echo)
        runner = web.AppRunner(app, keepalive_timeout=keep_alive_s, access_log=None)
        await runner.setup()
        await web.UnixSite(runner, self.socket(name)).start()
        try:
            yield
        finally:
            await runner.cleanup()

    @contextlib.asynccontextmanager
    async def envoy(
        self,
        role: str,
        name: str,
        *,
        port: int | None = None,
        rewrite: Callable[[str], str] = lambda text: text,
        **bootstrap: Any,
    ) -> AsyncIterator[None]:
        """Run an Envoy of this role, connected to the lab's ADS server.

        A further edge needs a port of its own. `rewrite` may change the bootstrap's text.
        """
        config = self.root / f"{name}.yaml"
        bootstrap.setdefault("xds_addresses", [UnixSocket(str(self.root / "xds.sock"))])
        text = render_bootstrap(
            role=role,
            node_id=name,
            admin_socket=str(self.root / f"{name}.admin"),
            listen=HostPort("127.0.0.1", port or self.edge_port) if role == "edge" else None,
            **bootstrap,
        )
        config.write_text(rewrite(text))
        binary = paths.envoy()
        assert binary is not None
        log = (self.root / f"{name}.log").open("wb")
        process = await asyncio.create_subprocess_exec(
            *(binary, "-c", str(config), "--disable-hot-restart", "--concurrency", "1"),
            *("-l", "warning", "--reject-unknown-dynamic-fields"),
            stdout=log,
            stderr=log,
        )
        try:
            await eventually(lambda: self._has_listener(name), within_s=15)
            yield
        finally:
            process.terminate()
            await process.wait()
            log.close()

    def _has_listener(self, name: str) -> bool:
        return any(
            stream.node == name
            and any(
                kind.type == "RouteConfiguration" and kind.state == "SYNCED"
                for kind in stream.types
            )
            for stream in self.service.status()
        )


def as_built(plan: Plan, view: View) -> Snapshot:
    """Render a plan as the product does."""
    return make_snapshot(build_resources(plan, view))


@contextlib.asynccontextmanager
async def running_lab(
    root: Path,
    render: Render = as_built,
    *,
    tls: TlsSource | None = None,
    addresses: Sequence[HostPort] = (),
) -> AsyncIterator[Lab]:
    """Serve a lab's ADS on its socket, and over TLS on further addresses."""
    lab = Lab(root, render, tls, addresses)
    await lab.start_serving()
    try:
        yield lab
    finally:
        await lab.stop_serving()


def chat(model: str = "acme/fox", **more: Any) -> bytes:
    """Return the body of a chat request."""
    return json.dumps({"model": model, "messages": [], **more}).encode()

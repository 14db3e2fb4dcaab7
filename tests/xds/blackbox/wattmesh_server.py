"""Our own server behind the seam: the real gRPC server, with worlds that are set by hand."""

import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from control_plane.addresses import UnixSocket
from control_plane.ads import AdsService, serve_ads
from control_plane.metrics import Metrics
from control_plane.plan import Plan
from control_plane.resources import Resources, View
from control_plane.snapshot import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    ROUTE,
    RUNTIME,
    SECRET,
    Snapshot,
    make_snapshot,
)
from control_plane.store import SnapshotStore
from tests.support.xds_wire import make_node
from tests.xds.blackbox.seam import World


class WattmeshServer:
    """Serves the same world to every Envoy, through the checks that every plan goes through."""

    def __init__(self, address: UnixSocket) -> None:
        self.address = str(address)
        self._world: World = {}
        self._puts = 0
        metrics = Metrics()
        self._store = SnapshotStore(self._render, metrics)
        self.service = AdsService(self._store, metrics)

    def put(self, world: World) -> None:
        """Publish a plan that renders to this world. Fail when our own checks refuse it."""
        self._world = world
        make_snapshot(_resources(world))  # the store would log a refusal and serve the last world
        self._puts += 1
        self._store.publish(Plan(max_request_bytes=self._puts))  # an equal plan would be no news

    def node(self, node_id: str) -> Any:
        """Return a node's Envoy: it is told nothing that concerns another one."""
        return make_node(node_id, role="node")

    def _render(self, _plan: Plan, _view: View) -> Snapshot:
        return make_snapshot(_resources(self._world))


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[WattmeshServer]:
    """Serve on a Unix socket of its own while the context is open."""
    with tempfile.TemporaryDirectory(
        prefix="wm-", dir="/tmp"
    ) as directory:  # a socket's path is limited
        address = UnixSocket(str(Path(directory) / "xds.sock"))
        server = WattmeshServer(address)
        async with serve_ads(server.service, [address]):
            yield server


def _resources(world: World) -> Resources:
    def of(type_url: str) -> tuple[Any, ...]:
        return tuple(message for _, message in sorted(world.get(type_url, {}).items()))

    return Resources(
        clusters=of(CLUSTER),
        endpoints=of(ENDPOINT),
        listeners=of(LISTENER),
        routes=of(ROUTE),
        runtimes=of(RUNTIME),
        extensions=of(EXTENSION),
        secrets=of(SECRET),
    )

"""Which of several control planes a real Envoy opens its stream to."""

import asyncio
import contextlib

import pytest

from control_plane.addresses import HostPort, UnixSocket
from control_plane.ads import AdsService, serve_ads
from control_plane.bootstrap import render_bootstrap
from control_plane.metrics import Metrics
from control_plane.store import SnapshotStore
from tests.support import paths
from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry
from tests.support.envoy_lab import as_built
from tests.support.eventually import eventually
from tests.support.ports import free_ports

pytestmark = pytest.mark.envoy
PLAN = make_plan(consul_entry("n1.e1"))


class Replica:
    """A control plane of this process that can be started, synced and ended."""

    def __init__(self, address, **options):
        self.address, self._options = address, options
        metrics = Metrics()
        self.store = SnapshotStore(as_built, metrics)
        self.service = AdsService(self.store, metrics)
        self._stack = contextlib.AsyncExitStack()

    @property
    def serves(self):
        return bool(self.service.status())

    async def start(self, *, synced):
        if synced:
            self.store.publish(PLAN)
        await self._stack.enter_async_context(
            serve_ads(self.service, [self.address], **self._options)
        )

    async def stop(self):
        await self._stack.aclose()
        await eventually(lambda: not self.serves)


@contextlib.asynccontextmanager
async def envoy(root, addresses, lkg):
    """Run an edge Envoy whose control planes need not be there."""
    config, (port,) = root / "edge.yaml", free_ports(1)
    config.write_text(
        render_bootstrap(
            role="edge",
            node_id="edge-1",
            xds_addresses=addresses,
            lkg=str(lkg),
            admin_socket=str(root / "edge.admin"),
            listen=HostPort("127.0.0.1", port),
        )
    )
    binary = paths.envoy()
    assert binary is not None
    with (root / "edge.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(binary, "-c", str(config), "--disable-hot-restart", "--concurrency", "1"),
            *("-l", "warning"),
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            process.terminate()
            await process.wait()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_the_healthy_control_planes_come_first_and_the_cache_last(short_tmp_path, host):
    """By name the bootstrap is another one, with an aggregate cluster; what it does is the same."""
    replicas = [Replica(HostPort("127.0.0.1", port)) for port in free_ports(3)]
    cache = Replica(UnixSocket(str(short_tmp_path / "xds.sock")), connection_age_s=2.0)
    addresses = [HostPort(host, replica.address.port) for replica in replicas]
    async with contextlib.AsyncExitStack() as stack:
        for server in (*replicas, cache):
            stack.push_async_callback(server.stop)
        await stack.enter_async_context(envoy(short_tmp_path, addresses, short_tmp_path))
        await asyncio.sleep(1.0)  # nothing answers at all, and Envoy knows it

        await cache.start(synced=True)
        await eventually(lambda: cache.serves, within_s=5)

        for replica in replicas:
            await replica.start(synced=False)
        await asyncio.sleep(3.0)  # the cache's stream ended in this time, and came back
        assert cache.serves
        assert not any(replica.serves for replica in replicas)

        replicas[0].store.publish(PLAN)
        await eventually(lambda: replicas[0].serves and not cache.serves, within_s=10)
        for replica in replicas[1:]:
            replica.store.publish(PLAN)
        await asyncio.sleep(2.0)  # they are seen to be healthy

        for _ in replicas:
            (holder,) = [replica for replica in replicas if replica.serves]
            assert not cache.serves
            await holder.stop()
            # The cache is only next once a health check has found the last one dead.
            await eventually(lambda: any(s.serves for s in (*replicas, cache)), within_s=10)
        assert cache.serves

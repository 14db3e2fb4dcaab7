"""TLS everywhere, with real Envoys: who gets in; rotations and migrations nobody notices."""

import shutil
import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import httpx
import pytest

from control_plane.addresses import HostPort
from control_plane.cli.bootstrap_tls import prepare_tls
from control_plane.mtls.authority_files import read_authority, rotate
from control_plane.mtls.files import TlsSource, read_tls
from control_plane.mtls.server import client_context
from control_plane.service import mesh_tls_of
from tests.support.builders import make_plan
from tests.support.certificates import give, new_authority
from tests.support.consul_json import consul_entry
from tests.support.envoy_lab import chat, running_lab
from tests.support.eventually import eventually
from tests.support.load import Load
from tests.support.ports import free_ports

pytestmark = pytest.mark.envoy
CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
DAY = timedelta(days=1)


class TlsMesh:
    """A CA, one engine, and Envoys that hold certificates."""

    def __init__(self, root):
        self.root = root
        self.authority = new_authority(root / "ca")
        self.tls = TlsSource(give(self.authority, "control-plane", "cp-1", root / "cp-1"))
        (port,) = free_ports(1)
        self.address = HostPort("127.0.0.1", port)
        self.lab = None

    def identity(self, role, name):
        """Give an Envoy its certificate, and return what its bootstrap needs."""
        give(self.authority, role, name, self.root / name)
        return prepare_tls(self.root / name, role=role, node_id=name)

    def envoy(self, role, name, **options):
        mesh = self.identity(role, name)
        return self.lab.envoy(role, name, xds_addresses=[self.address], mesh=mesh, **options)

    async def put(self, mode):
        """Publish the plan with this step of the migration, under the CAs of our own files."""
        plan = make_plan(
            consul_entry("node-a.e1", port=self.lab.node_port, socket=self.lab.socket("e1"))
        )
        tls = None if mode is None else mesh_tls_of(mode, self.tls.refresh())
        await self.lab.publish(replace(plan, mesh_tls=tls))

    def reissue(self, *names):
        """Issue certificates and the bundle again, over those that are there."""
        self.authority = read_authority(self.root / "ca")
        for role, name in names:
            give(self.authority, role, name, self.root / name)

    def client(self, role):
        """Return a TLS context that talks to nodes as somebody of this role."""
        files = give(self.authority, role, "who", self.root / f"who-{role}")
        return client_context(read_tls(files, now=datetime.now(UTC)), "node")

    async def at_node(self, path, context, **data):
        """Ask the node's mesh listener itself; return the status."""
        url = f"https://127.0.0.1:{self.lab.node_port}{path}"
        connector = aiohttp.TCPConnector(ssl=context)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.request("POST" if data else "GET", url, **data) as response,
        ):
            return response.status


@pytest.fixture
async def mesh():
    root = Path(tempfile.mkdtemp(prefix="wm-", dir="/tmp"))
    mesh = TlsMesh(root)
    async with running_lab(root, tls=mesh.tls, addresses=[mesh.address]) as lab:
        mesh.lab = lab
        async with lab.engine("e1"):
            yield mesh
    shutil.rmtree(root)


async def answered(load, count):
    """Wait for so many more answers."""
    goal = len(load.outcomes) + count
    await eventually(lambda: len(load.outcomes) >= goal, within_s=20)


def steady(lab):
    """Send 50 requests a second while the context is open."""
    return Load(f"{lab.url}{CHAT}", {"model": "acme/fox", "stream": False}, rate_per_s=50)


async def updates(mesh, name):
    stats = await mesh.lab.stats(name)
    kinds = ("cluster_manager.cds", "listener_manager.lds")
    return {kind: stats[f"{kind}.update_success"] for kind in kinds}


async def test_every_hop_is_encrypted_and_roles_decide(mesh):
    mesh.lab.store.publish(make_plan())
    await mesh.put("require")
    async with mesh.envoy("node", "node-a"), mesh.envoy("edge", "edge-1"):
        async with httpx.AsyncClient(base_url=mesh.lab.url, timeout=10) as client:
            answer = await client.post(CHAT, content=chat(), headers=JSON)
        assert answer.status_code == 200
        stats = await mesh.lab.stats("node-a")
        assert stats["listener.127.0.0.1_" + f"{mesh.lab.node_port}.ssl.handshake"] >= 1

        async with httpx.AsyncClient() as plain:
            with pytest.raises(httpx.HTTPError):
                await plain.get(f"http://127.0.0.1:{mesh.lab.node_port}/")

        metrics = "/wattmesh/engines/e1/metrics"
        prompt = {"data": chat(), "headers": {**JSON, "x-wattmesh-pool": "acme_2Ffox"}}
        for role, reads, sends in (("monitor", 200, 403), ("edge", 200, 200)):
            context = mesh.client(role)
            assert await mesh.at_node(metrics, context) == reads
            assert await mesh.at_node(CHAT, context, **prompt) == sends
        with pytest.raises(aiohttp.ClientError):
            await mesh.at_node(metrics, mesh.client("node"))


@pytest.mark.conformance("62")
async def test_62_a_rotated_ca_moves_secrets_alone_and_no_request_fails(mesh):
    hosts = (("control-plane", "cp-1"), ("node", "node-a"), ("edge", "edge-1"))
    await mesh.put("require")
    async with mesh.envoy("node", "node-a"), mesh.envoy("edge", "edge-1"):
        before = [await updates(mesh, name) for name in ("node-a", "edge-1")]
        first = mesh.tls.current.authorities
        async with steady(mesh.lab) as load:
            for step in ("begin", "switch", "finish"):
                await answered(load, 20)
                rotate(read_authority(mesh.root / "ca"), step, now=datetime.now(UTC), lifetime=DAY)
                mesh.reissue(*hosts)
                await mesh.put("require")
                await answered(load, 40)
        assert load.failures() == []
        assert mesh.tls.current.authorities != first
        assert [await updates(mesh, name) for name in ("node-a", "edge-1")] == before
        stats = await mesh.lab.stats("edge-1")
        assert stats["cluster.acme_2Ffox.ssl.handshake"] >= 1
        # The old CA's certificates do not get in any more; the new one's do.
        assert await mesh.at_node("/wattmesh/engines/e1/metrics", mesh.client("monitor")) == 200


async def test_a_migration_from_plain_to_tls_loses_no_request(mesh):
    await mesh.put(None)
    async with mesh.envoy("node", "node-a"), mesh.envoy("edge", "edge-1"):
        async with steady(mesh.lab) as load:
            for step in ("accept", "use", "require", "use", "accept", None):
                await answered(load, 20)
                await mesh.put(step)
                await answered(load, 40)
        assert load.failures() == []


async def test_an_envoy_without_a_certificate_keeps_what_it_has_and_is_told_of(mesh):
    await mesh.put("accept")
    async with mesh.lab.envoy("node", "node-a"), mesh.lab.envoy("edge", "edge-1"):
        await mesh.put("require")
        (reason,) = {
            text for texts in mesh.lab.store.refused.values() for text in texts if "edge" in text
        }
        assert "node.metadata.tls_dir is missing" in reason
        async with httpx.AsyncClient(base_url=mesh.lab.url, timeout=10) as client:
            assert (await client.post(CHAT, content=chat(), headers=JSON)).status_code == 200


async def test_a_missing_key_is_its_own_hosts_fault_alone(mesh):
    await mesh.put("require")
    identity = mesh.identity("edge", "edge-1")
    (identity.directory / "tls.key").rename(identity.directory / "gone")
    over_socket = mesh.lab.envoy("edge", "edge-1", mesh=identity)
    async with mesh.envoy("node", "node-a"), over_socket:
        await eventually(lambda: nacks(mesh.lab, "edge-1"), within_s=10)
        assert "tls.key" in nacks(mesh.lab, "edge-1")["Secret"]
        assert mesh.lab.store.quarantined == ()


def nacks(lab, node):
    """Return what an Envoy refused, by type."""
    streams = [stream for stream in lab.service.status() if stream.node == node]
    return {kind.type: kind.last_error for s in streams for kind in s.types if kind.nacks}

"""mTLS of the xDS server and the HTTP servers: who gets in, and what each may ask for."""

import contextlib
import ssl
from datetime import UTC, datetime, timedelta

import aiohttp
import grpc
import pytest
import structlog

from control_plane.addresses import HostPort, UnixSocket
from control_plane.admin import serve_admin
from control_plane.ads import AdsService, serve_ads
from control_plane.metrics import Metrics
from control_plane.mtls.authority_files import issue_files, read_authority, rotate
from control_plane.mtls.files import TlsSource, read_tls
from control_plane.mtls.server import client_context
from control_plane.mtls.spiffe import make_identity
from control_plane.resources import build_resources
from control_plane.rest import serve_rest
from control_plane.service import ControlPlane
from control_plane.snapshot import CLUSTER, make_snapshot
from control_plane.store import SnapshotStore
from engines.gpu import load_gpu_table
from tests.support.builders import make_plan
from tests.support.certificates import give, new_authority
from tests.support.consul_json import consul_entry
from tests.support.ports import free_ports
from tests.support.xds_wire import EDGE, Wire, make_node

NODE = make_node("n1", role="node")


def credentials(files):
    return grpc.ssl_channel_credentials(
        files.authorities.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )


def wire(address, files):
    return Wire(str(address), None if files is None else credentials(files))


class World:
    """A CA, a server with a certificate, and a client for each who asks."""

    def __init__(self, path):
        self.path = path
        self.authority = new_authority(path / "ca")
        self.server = give(self.authority, "control-plane", "localhost", path / "server")
        self.tls = TlsSource(self.server)
        self.metrics = Metrics()
        self.store = SnapshotStore(
            lambda plan, view: make_snapshot(build_resources(plan, view)), self.metrics
        )
        self.store.publish(make_plan(consul_entry("n1.e1"), consul_entry("n2.e1")))
        (port,) = free_ports(1)
        self.address = HostPort("localhost", port)

    def give(self, role, workload_id):
        return give(self.authority, role, workload_id, self.path / f"{role}-{workload_id}")

    def context(self, files, role="control-plane"):
        return client_context(read_tls(files, now=datetime.now(UTC)), role)


@pytest.fixture
def world(short_tmp_path):
    # gRPC's own client looks at host names, as Envoy and our clients do not.
    world = World(short_tmp_path)
    issue_with_name(world)
    world.tls.refresh()
    return world


def issue_with_name(world):
    world.authority = read_authority(world.path / "ca")
    issue_files(
        world.authority,
        make_identity("mesh.test", "control-plane", "cp-1"),
        world.path / "server",
        now=datetime.now(UTC),
        lifetime=timedelta(hours=1),
        names=["localhost"],
    )


@contextlib.asynccontextmanager
async def serving(world, *more):
    service = AdsService(world.store, world.metrics, world.tls)
    async with serve_ads(service, [world.address, *more], world.tls):
        yield


async def refusal(client, node):
    """Return the gRPC status with which a stream for a node ends."""
    stream = client.open("delta", node=node)
    with contextlib.suppress(grpc.aio.AioRpcError):
        await stream.send(CLUSTER)
    return await stream.code()


async def test_a_node_gets_its_own_resources(world):
    async with serving(world), wire(world.address, world.give("node", "n1")) as client:
        stream = client.open("delta", node=NODE)
        await stream.send(CLUSTER)
        assert len((await stream.receive()).resources) == 2


@pytest.mark.parametrize(
    ("role", "workload_id", "node"),
    [
        ("node", "n2", NODE),
        ("edge", "n1", NODE),
        ("node", "edge-1", EDGE),
        ("operator", "n1", NODE),
        ("control-plane", "n1", NODE),
    ],
)
async def test_nobody_gets_the_resources_of_another(world, role, workload_id, node):
    with structlog.testing.capture_logs() as logs:
        async with serving(world), wire(world.address, world.give(role, workload_id)) as client:
            assert await refusal(client, node) is grpc.StatusCode.PERMISSION_DENIED
    assert "a node gets its own resources alone" in logs[-1]["reason"]


async def test_a_later_request_cannot_take_another_name(world):
    async with serving(world), wire(world.address, world.give("node", "n1")) as client:
        stream = client.open("delta", node=NODE)
        await stream.send(CLUSTER)
        mine = await stream.receive()
        await stream.send(CLUSTER, node=make_node("n2", role="node"), response_nonce=mine.nonce)
        world.store.publish(make_plan(consul_entry("n1.e1"), consul_entry("n1.e2", model="b")))
        assert {item.name for item in (await stream.receive()).resources} >= {"metrics_of_e2"}


async def test_a_certificate_of_another_ca_does_not_get_in(world, tmp_path):
    stranger = give(new_authority(tmp_path / "other"), "node", "n1", tmp_path / "n1")
    stranger.authorities.write_bytes(world.server.authorities.read_bytes())
    async with serving(world), wire(world.address, stranger) as client:
        assert await refusal(client, NODE) is grpc.StatusCode.UNAVAILABLE


async def test_no_certificate_does_not_get_in(world):
    only_ca = grpc.ssl_channel_credentials(world.server.authorities.read_bytes())
    async with serving(world):
        for given in (only_ca, None):
            async with Wire(str(world.address), given) as client:
                assert await refusal(client, NODE) is grpc.StatusCode.UNAVAILABLE


async def test_another_trust_domain_of_the_same_ca_is_refused(world):
    files = world.give("node", "n1")
    issue_files(
        world.authority,
        make_identity("other.test", "node", "n1"),
        files.key.parent,
        now=datetime.now(UTC),
        lifetime=timedelta(hours=1),
    )
    async with serving(world), wire(world.address, files) as client:
        assert await refusal(client, NODE) is grpc.StatusCode.PERMISSION_DENIED


async def test_a_unix_socket_stays_plain_and_is_guarded_by_its_mode(world):
    socket = UnixSocket(str(world.path / "xds.sock"))
    async with serving(world, socket), Wire(str(socket)) as client:
        stream = client.open("delta", node=NODE)
        await stream.send(CLUSTER)
        assert (await stream.receive()).resources


@pytest.mark.conformance("62")
async def test_62_a_rotated_ca_is_taken_without_a_restart_and_the_old_one_ends(world):
    now, day = datetime.now(UTC), timedelta(days=1)
    before = world.give("node", "n1")
    async with serving(world):
        world.authority = rotate(world.authority, "begin", now=now, lifetime=day)
        issue_with_name(world)  # signed by the old CA, trusting both
        world.authority = rotate(world.authority, "switch", now=now, lifetime=day)
        after = give(world.authority, "node", "n1", world.path / "after")
        issue_with_name(world)  # signed by the new one
        before.authorities.write_bytes(after.authorities.read_bytes())
        for files in (before, after):
            async with wire(world.address, files) as client:
                stream = client.open("delta", node=NODE)
                await stream.send(CLUSTER)
                assert (await stream.receive()).resources
        world.authority = rotate(world.authority, "finish", now=now, lifetime=day)
        issue_with_name(world)
        async with wire(world.address, before) as client:
            assert await refusal(client, NODE) is grpc.StatusCode.UNAVAILABLE
        async with wire(world.address, after) as client:
            stream = client.open("delta", node=NODE)
            await stream.send(CLUSTER)
            assert (await stream.receive()).resources


async def ask(url, context, method="GET", **data):
    connector = aiohttp.TCPConnector(ssl=context)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.request(method, url, **data) as response,
    ):
        return response.status, await response.json(content_type=None)


def a_plane(world):
    return ControlPlane(world.store, world.metrics, load_gpu_table(), guarded=False, hold_s=60.0)


@pytest.mark.parametrize(
    ("role", "method", "path", "status"),
    [
        ("operator", "GET", "/v1/plan", 200),
        ("monitor", "GET", "/v1/plan", 200),
        ("control-plane", "GET", "/v1/xds/status", 200),
        ("node", "GET", "/v1/plan", 403),
        ("edge", "GET", "/v1/xds/resources/n1", 403),
        ("edge", "GET", "/ready", 200),
        ("monitor", "POST", "/v1/plan", 403),
        ("operator", "POST", "/v1/plan", 405),
    ],
)
async def test_the_admin_api_answers_by_role(world, role, method, path, status):
    context = world.context(world.give(role, "who"))
    async with serve_admin(a_plane(world), world.address, world.tls):
        found, body = await ask(f"https://{world.address}{path}", context, method)
    assert found == status
    assert status < 400 or body["error"]["message"]


async def test_plain_tcp_may_read_and_never_act(world):
    async with serve_admin(a_plane(world), world.address):
        assert (await ask(f"http://{world.address}/v1/plan", None))[0] == 200
        status, body = await ask(f"http://{world.address}/v1/plan", None, "POST")
    assert (status, body["error"]["code"]) == (403, "forbidden")


async def test_a_client_leaves_a_server_of_another_role(world):
    context = world.context(world.give("operator", "me"), role="node")
    async with serve_admin(a_plane(world), world.address, world.tls):
        with pytest.raises(aiohttp.ClientConnectorError, match="control-plane/cp-1, expected"):
            await ask(f"https://{world.address}/ready", context)


async def test_http_without_a_certificate_does_not_get_in(world):
    context = ssl.create_default_context(cafile=str(world.server.authorities))
    context.check_hostname = False
    async with serve_admin(a_plane(world), world.address, world.tls):
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await ask(f"https://{world.address}/ready", context)


async def test_a_rotated_certificate_is_served_without_a_restart(world):
    context = world.context(world.give("operator", "me"))
    async with serve_admin(a_plane(world), world.address, world.tls):
        assert (await ask(f"https://{world.address}/ready", context))[0] == 200
        now, day = datetime.now(UTC), timedelta(days=1)
        world.authority = rotate(world.authority, "begin", now=now, lifetime=day)
        world.authority = rotate(world.authority, "switch", now=now, lifetime=day)
        world.authority = rotate(world.authority, "finish", now=now, lifetime=day)
        issue_with_name(world)
        with pytest.raises(aiohttp.ClientConnectorError):  # it trusts the old CA alone
            await ask(f"https://{world.address}/ready", context)
        renewed = world.context(world.give("operator", "me"))
        assert (await ask(f"https://{world.address}/ready", renewed))[0] == 200


@pytest.mark.parametrize(("workload_id", "status"), [("n1", 200), ("n2", 403)])
async def test_a_poll_over_rest_is_for_oneself(world, workload_id, status):
    context = world.context(world.give("node", workload_id))
    body = {"node": {"id": "n1", "metadata": {"role": "node"}}}
    async with serve_rest(world.store, world.address, world.tls):
        url = f"https://{world.address}/v3/discovery:clusters"
        found, answer = await ask(url, context, "POST", json=body)
    assert found == status
    assert ("resources" in answer) == (status == 200)

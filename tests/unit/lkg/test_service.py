"""The cache as a server: what a client on its socket meets before and after there is something."""

import asyncio
import contextlib
import stat

import grpc
import pytest
import structlog
from aiohttp import web
from grpc_health.v1 import health_pb2, health_pb2_grpc

from control_plane.lkg.files import MANIFEST, CacheFiles
from control_plane.lkg.service import LkgConfig, run_lkg
from control_plane.snapshot import CLUSTER, ENDPOINT, LISTENER
from engines.sockets import SocketError
from tests.support.eventually import eventually
from tests.support.xds_wire import Wire, make_node
from tests.unit.lkg.recorded_envoy import RecordedEnvoy
from tests.unit.lkg.test_files import world

NODE = make_node("n1", role="node")


class FakeEnvoy:
    """An admin API on a Unix socket."""

    def __init__(self, envoy):
        self.envoy = envoy
        self.counters = ["cluster.a.update_success: 1"]

    async def answer(self, request):
        answers = self.envoy.answers()
        if request.path == "/stats":
            assert request.query["filter"] == r"\.update_success$"
            return web.Response(text="\n".join(self.counters))
        if request.path == "/config_dump":
            assert "include_eds" in request.query
            return web.Response(body=answers.config_dump)
        bodies = {"/clusters": answers.clusters, "/runtime": answers.runtime}
        return web.Response(body=bodies[request.path])

    @contextlib.asynccontextmanager
    async def serving(self, path):
        app = web.Application()
        app.router.add_get("/{path:.*}", self.answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.UnixSite(runner, str(path)).start()
        try:
            yield
        finally:
            await runner.cleanup()


@contextlib.asynccontextmanager
async def running(root):
    config = LkgConfig(directory=root / "lkg", envoy_admin=root / "envoy.sock", poll_s=0.02)
    task = asyncio.create_task(run_lkg(config))
    socket = config.directory / "xds.sock"
    await eventually(lambda: task.done() or socket.exists())
    try:
        yield task, socket
    finally:
        task.cancel()
        await asyncio.wait([task])


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


async def status(socket):
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return (await stub.Check(health_pb2.HealthCheckRequest())).status


async def test_an_empty_cache_refuses_streams_and_is_not_healthy(short_tmp_path):
    async with running(short_tmp_path) as (_, socket), Wire(f"unix:{socket}") as wire:
        assert mode_of(socket) == 0o660
        stream = wire.open("delta", node=NODE)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await stream.send(CLUSTER)
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        assert await status(socket) == health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("variant", ["delta", "sotw"])
async def test_what_an_envoy_has_is_served_to_the_next_one(short_tmp_path, variant):
    recorded = RecordedEnvoy.read("node")
    envoy = FakeEnvoy(recorded)
    async with (
        envoy.serving(short_tmp_path / "envoy.sock"),
        running(short_tmp_path) as (_, socket),
        Wire(f"unix:{socket}") as wire,
    ):
        await eventually((socket.parent / MANIFEST).exists)
        stream = wire.open(variant, node=NODE)
        await stream.send(CLUSTER)
        clusters = await stream.receive()
        assert len(clusters.resources) == len(recorded.sent[CLUSTER])
        if variant == "delta":
            told = {item.name: item.version for item in clusters.resources}
            assert told == recorded.sent[CLUSTER]
        assert await status(socket) == health_pb2.HealthCheckResponse.SERVING


async def test_an_envoy_that_holds_it_all_is_sent_nothing(short_tmp_path):
    recorded = RecordedEnvoy.read("node")
    await asyncio.to_thread(CacheFiles(short_tmp_path / "lkg").write, world("node"))
    async with running(short_tmp_path) as (_, socket), Wire(f"unix:{socket}") as wire:
        stream = wire.open("delta", node=NODE)
        for type_url in (CLUSTER, ENDPOINT, LISTENER):
            held = recorded.sent[type_url]
            names = list(held) if type_url == ENDPOINT else []
            await stream.send(
                type_url, resource_names_subscribe=names, initial_resource_versions=held
            )
        await stream.silence()


async def test_a_bad_cache_is_told_and_what_is_good_of_it_is_served(short_tmp_path):
    files = CacheFiles(short_tmp_path / "lkg")
    files.write(world("edge"))
    files.write(world("node"))
    (short_tmp_path / "lkg" / MANIFEST).write_bytes(b"half of a ma")
    with structlog.testing.capture_logs() as logs:
        async with running(short_tmp_path) as (_, socket):
            await eventually(lambda: any(x["event"].endswith("cache is up") for x in logs))
            assert await status(socket) == health_pb2.HealthCheckResponse.SERVING
    (told,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert MANIFEST in told["fault"]


async def test_two_caches_never_share_a_directory(short_tmp_path):
    async with running(short_tmp_path), running(short_tmp_path) as (second, _):
        await eventually(second.done)
        with pytest.raises(SocketError, match="has a live server"):
            second.result()

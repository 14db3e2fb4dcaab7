"""The cache where everything speaks TLS: what it keeps of secrets, and a start of all from it."""

import asyncio
import contextlib
from dataclasses import replace

import httpx
import pytest

from control_plane.addresses import HostPort
from control_plane.cli.bootstrap_tls import prepare_tls
from control_plane.lkg.files import CacheFiles
from control_plane.lkg.service import LkgConfig, run_lkg
from control_plane.lkg.world import versions
from control_plane.mtls.files import TlsSource
from control_plane.service import mesh_tls_of
from control_plane.snapshot import LISTENER, SECRET
from tests.support import paths
from tests.support.builders import make_plan
from tests.support.certificates import give, new_authority
from tests.support.consul_json import consul_entry
from tests.support.envoy_lab import chat, running_lab
from tests.support.eventually import eventually
from tests.support.ports import free_ports

pytestmark = pytest.mark.envoy
ENVOYS = (("node", "node-a"), ("edge", "edge-1"))


@contextlib.asynccontextmanager
async def cache(lab, name):
    """Run an Envoy's cache beside it."""
    admin = lab.root / f"{name}.admin"
    config = LkgConfig(directory=lab.root / f"lkg-{name}", envoy_admin=admin, poll_s=0.1)
    task = asyncio.create_task(run_lkg(config))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@contextlib.asynccontextmanager
async def envoy_again(lab, name):
    """Start an Envoy by the bootstrap that it had, whoever serves it."""
    with (lab.root / f"{name}.again.log").open("wb") as log:
        argv = (str(paths.envoy()), "-c", str(lab.root / f"{name}.yaml"), "--disable-hot-restart")
        process = await asyncio.create_subprocess_exec(
            *argv, "--concurrency", "1", "-l", "warning", stdout=log, stderr=log
        )
        try:
            yield
        finally:
            process.terminate()
            await process.wait()


async def chat_status(lab):
    async with httpx.AsyncClient(timeout=10) as client:
        with contextlib.suppress(httpx.HTTPError):
            headers = {"content-type": "application/json"}
            url = f"{lab.url}/v1/chat/completions"
            return (await client.post(url, content=chat(), headers=headers)).status_code
    return None


async def served_within(lab, seconds):
    async with asyncio.timeout(seconds):
        while await chat_status(lab) != 200:  # noqa: ASYNC110 what is awaited rings no bell
            await asyncio.sleep(0.1)


def recorded(lab, name):
    return CacheFiles(lab.root / f"lkg-{name}").read().world


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_all_envoys_start_from_their_caches_with_mesh_tls(short_tmp_path, host):
    """By IP the cache is an endpoint among the control planes', by name a cluster of its own."""
    authority = new_authority(short_tmp_path / "ca")
    tls = TlsSource(give(authority, "control-plane", "cp-1", short_tmp_path / "cp-1"))
    (port,) = free_ports(1)
    listening = HostPort("127.0.0.1", port)
    async with (
        running_lab(short_tmp_path, tls=tls, addresses=[listening]) as lab,
        lab.engine("e1"),
        contextlib.AsyncExitStack() as caches,
    ):
        entry = consul_entry("node-a.e1", port=lab.node_port, socket=lab.socket("e1"))
        plan = replace(make_plan(entry), mesh_tls=mesh_tls_of("require", tls.refresh()))
        lab.store.publish(plan)
        async with contextlib.AsyncExitStack() as envoys:
            for role, name in ENVOYS:
                give(authority, role, name, short_tmp_path / name)
                mesh = prepare_tls(short_tmp_path / name, role=role, node_id=name)
                how = {"xds_addresses": [HostPort(host, port)], "mesh": mesh}
                how["lkg"] = str(short_tmp_path / f"lkg-{name}")
                await envoys.enter_async_context(lab.envoy(role, name, **how))
                await caches.enter_async_context(cache(lab, name))
            await served_within(lab, 10)
            for _, name in ENVOYS:
                view = lab.service.view_of(name)
                sent = {t: n for t, n in versions(lab.store.snapshot(view)).items() if n}
                await eventually(lambda name=name: recorded(lab, name) is not None, within_s=10)
                held = versions(recorded(lab, name))
                assert {t: n for t, n in held.items() if n} == sent
                assert sorted(held[SECRET]) == ["mesh-ca", "mesh-identity"]

        await lab.stop_serving()
        async with envoy_again(lab, "node-a"), envoy_again(lab, "edge-1"):
            await served_within(lab, 15)
            for _, name in ENVOYS:
                assert versions(recorded(lab, name))[LISTENER]
            kept = b"".join(p.read_bytes() for p in files_of(short_tmp_path))
            assert b"PRIVATE" not in kept
            assert b"redacted" not in kept

            await lab.start_serving()
            lab.store.publish(plan)
            await eventually(lambda: len(lab.service.status()) == len(ENVOYS), within_s=15)
            assert await chat_status(lab) == 200


def files_of(root):
    return [path for name in ("node-a", "edge-1") for path in (root / f"lkg-{name}").glob("*.json")]

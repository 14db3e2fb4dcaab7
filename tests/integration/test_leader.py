"""Leadership over a real Consul: one at a time, handed over, and given up in time."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from control_plane.consul_catalog import open_consul
from control_plane.leader import Leadership
from tests.support import paths
from tests.support.consul import ConsulServer
from tests.support.eventually import eventually

pytestmark = pytest.mark.consul
conformance = pytest.mark.conformance
TTL_S = 10  # Consul's least


@pytest.fixture
def server() -> Iterator[ConsulServer]:
    binary = paths.consul()
    assert binary is not None
    with tempfile.TemporaryDirectory(prefix="wm-", dir="/tmp") as root:
        server = ConsulServer(binary, Path(root))
        server.start()
        yield server
        server.kill()


@contextlib.asynccontextmanager
async def seeking(server: ConsulServer, name: str) -> AsyncIterator[Leadership]:
    async with open_consul(server.address, None) as client:
        leadership = Leadership(client, name=name, ttl_s=TTL_S)
        task = asyncio.create_task(leadership.seek())
        try:
            yield leadership
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@conformance("consul-29")
@conformance("consul-31")
@conformance("consul-32")
@conformance("consul-34")
async def test_one_leads_and_hands_over_at_once_when_it_stops(server):
    async with seeking(server, "second") as second:
        async with seeking(server, "first") as first:
            await eventually(lambda: first.leads or second.leads, within_s=5)
            await asyncio.sleep(1.5)
            assert first.leads != second.leads
        await eventually(lambda: second.leads, within_s=10)
        (session,) = server.get("/v1/session/list")
        assert session["NodeChecks"] in ([], None)  # the agent's own health ends no lock
        assert session["TTL"] == f"{TTL_S}s"
        assert session["LockDelay"] == 1_000_000_000  # ns; no lock of the last holder is waited for
        (lock,) = server.get("/v1/kv/wattmesh/leader")
        assert lock["Session"] == session["ID"]


@conformance("consul-33")
async def test_a_session_that_is_gone_is_replaced_by_a_new_one(server):
    async with seeking(server, "only") as only:
        await eventually(lambda: only.leads, within_s=5)
        (old,) = server.get("/v1/session/list")
        server.put(f"/v1/session/destroy/{old['ID']}")

        def replaced() -> bool:
            return [s["ID"] for s in server.get("/v1/session/list")] not in ([], [old["ID"]])

        await asyncio.to_thread(_wait, replaced, 10.0)
        await eventually(lambda: only.leads, within_s=10)


@conformance("consul-30")
async def test_who_cannot_renew_stops_leading_before_the_session_can_end(server):
    async with seeking(server, "only") as only:
        await eventually(lambda: only.leads, within_s=5)
        server.kill()
        await eventually(lambda: not only.leads, within_s=TTL_S)
        server.start()
        await eventually(lambda: only.leads, within_s=20)


def _wait(condition, within_s: float) -> None:
    async def wait() -> None:
        await eventually(condition, within_s=within_s)

    asyncio.run(wait())

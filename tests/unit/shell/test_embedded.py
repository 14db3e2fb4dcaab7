"""The embedded registry: Consul's behaviour as far as agents and readers see it."""

import asyncio

import pytest

from control_plane.embedded import EmbeddedRegistry
from control_plane.guard import CatalogRead
from engines.registrar import Registration, UnknownServiceError
from tests.support.eventually import eventually

META = {"model": "acme/fox", "socket": "/run/wattmesh/e1.sock"}


def registration(*, ttl_s: float = 10.0, **meta: str) -> Registration:
    return Registration(
        id="a.e1", address="127.0.0.1", port=9901, ttl_s=ttl_s, meta={**META, **meta}
    )


async def seen(reads: list[CatalogRead]) -> list[list[tuple[str, bool]]]:
    return [[(entry.id, entry.passing) for entry in read.catalog.entries] for read in reads]


async def test_what_a_reader_sees_of_an_agents_life() -> None:
    registry, reads = EmbeddedRegistry(), list[CatalogRead]()

    async def follow() -> None:
        async for read in registry.watch():
            reads.append(read)

    task = asyncio.create_task(follow())
    await eventually(lambda: len(reads) == 1)
    await registry.register(registration())
    await eventually(lambda: len(reads) == 2)
    await registry.heartbeat("a.e1", "passing", "answers")
    await eventually(lambda: len(reads) == 3)
    await registry.heartbeat("a.e1", "passing", "answers")
    await registry.deregister("a.e1")
    await registry.deregister("a.e1")
    await eventually(lambda: len(reads) == 4)
    task.cancel()
    await asyncio.wait([task])
    assert await seen(reads) == [[], [("a.e1", False)], [("a.e1", True)], []]
    assert [read.index for read in reads] == [1, 2, 3, 4]


async def test_a_silent_agents_engine_turns_critical_after_its_ttl() -> None:
    registry = EmbeddedRegistry()
    await registry.register(registration(ttl_s=0.05))
    await registry.heartbeat("a.e1", "passing", "")
    source = registry.watch()
    reads = [await anext(source)]
    async with asyncio.timeout(2):
        reads.append(await anext(source))
    assert await seen(reads) == [[("a.e1", True)], [("a.e1", False)]]


async def test_a_registration_again_replaces_metadata() -> None:
    registry = EmbeddedRegistry()
    await registry.register(registration(gpu_power="100"))
    await registry.register(registration(gpu_power="300"))
    (entry,) = (await anext(registry.watch())).catalog.entries
    assert entry.metadata.gpu_power == 300


async def test_a_heartbeat_of_an_unknown_service_asks_to_register() -> None:
    with pytest.raises(UnknownServiceError):
        await EmbeddedRegistry().heartbeat("a.e1", "passing", "")

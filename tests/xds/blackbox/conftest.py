"""The server under test. Only this file names ours; the scenarios know the seam."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.support.xds_wire import Variant, Wire, WireStream
from tests.xds.blackbox import wattmesh_server
from tests.xds.blackbox.seam import ServerUnderTest, Serving
from tests.xds.blackbox.worlds import world

Open = Callable[..., WireStream]


@pytest.fixture(scope="session")
def serving() -> Serving:
    """Starts servers."""
    return wattmesh_server.serving


@pytest.fixture
async def server(serving: Serving) -> AsyncIterator[ServerUnderTest]:
    """A server with an empty world."""
    async with serving() as server:
        server.put(world())
        yield server


@pytest.fixture
async def open_stream(server: ServerUnderTest) -> AsyncIterator[Open]:
    """Opens streams to the server, all of one Envoy."""
    async with Wire(server.address) as wire:

        def open_stream(variant: Variant, **options: Any) -> WireStream:
            return wire.open(variant, **{"node": server.node("envoy-1"), **options})

        yield open_stream


@pytest.fixture(params=["sotw", "delta"])
def variant(request: pytest.FixtureRequest) -> Variant:
    """Either variant."""
    return request.param


@pytest.fixture
async def stream(open_stream: Open, variant: Variant) -> WireStream:
    """A stream of either variant."""
    return open_stream(variant)


@pytest.fixture
async def sotw(open_stream: Open) -> WireStream:
    """A stream of the state of the world."""
    return open_stream("sotw")


@pytest.fixture
async def delta(open_stream: Open) -> WireStream:
    """An incremental stream."""
    return open_stream("delta")

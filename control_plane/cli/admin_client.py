"""Asking a control plane's admin API, over its Unix socket or TCP."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from control_plane.addresses import HostPort, UnixSocket
from control_plane.errors import WattmeshError

_TIMEOUT = aiohttp.ClientTimeout(total=10)


class AdminError(WattmeshError):
    """The admin API did not answer, or not with what was asked."""


async def ask_admin(address: UnixSocket | HostPort, *paths: str) -> list[Any]:
    """Return the JSON of each path. A 503 is an answer too. Raise AdminError when none comes."""
    async with _session(address) as (session, base):
        return [await _get(session, base + path) for path in paths]


async def post_admin(
    address: UnixSocket | HostPort, path: str, body: Mapping[str, object]
) -> tuple[int, Any]:
    """Return the status and JSON that answer a named action. Raise AdminError when none comes."""
    async with (
        _session(address) as (session, base),
        session.post(base + path, json=body) as response,
    ):
        return response.status, await response.json()


@contextlib.asynccontextmanager
async def _session(
    address: UnixSocket | HostPort,
) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    connector = aiohttp.UnixConnector(address.path) if isinstance(address, UnixSocket) else None
    base = "http://admin" if isinstance(address, UnixSocket) else f"http://{address}"
    try:
        async with aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT) as session:
            yield session, base
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise AdminError(
            f"no control plane answers at {address} ({str(error) or type(error).__name__}); "
            "start one with `wattmesh up` or `wattmesh control-plane`, "
            "or name its admin API with --admin-address"
        ) from error


async def _get(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url) as response:
        return await response.json()

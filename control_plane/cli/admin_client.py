"""Asking a control plane's admin API, over its Unix socket or TCP."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp

from control_plane.addresses import HostPort, UnixSocket
from control_plane.errors import WattmeshError
from control_plane.mtls.files import TlsFiles, read_tls
from control_plane.mtls.server import client_context

_TIMEOUT = aiohttp.ClientTimeout(total=10)


class AdminError(WattmeshError):
    """The admin API did not answer, or not with what was asked."""


async def ask_admin(
    address: UnixSocket | HostPort, *paths: str, tls_dir: Path | None = None
) -> list[Any]:
    """Return the JSON of each path. A 503 is an answer too. Raise AdminError when none comes.

    `tls_dir` holds the certificate of a monitor or operator; without it TCP is plain.
    """
    async with _session(address, tls_dir) as (session, base):
        return [await _get(session, base + path) for path in paths]


async def post_admin(
    address: UnixSocket | HostPort,
    path: str,
    body: Mapping[str, object],
    tls_dir: Path | None = None,
) -> tuple[int, Any]:
    """Return the status and JSON that answer a named action. Raise AdminError when none comes."""
    async with (
        _session(address, tls_dir) as (session, base),
        session.post(base + path, json=body) as response,
    ):
        return response.status, await response.json()


@contextlib.asynccontextmanager
async def _session(
    address: UnixSocket | HostPort, tls_dir: Path | None
) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    connector, base = _way_to(address, tls_dir)
    try:
        async with aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT) as session:
            yield session, base
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise AdminError(
            f"no control plane answers at {address} ({str(error) or type(error).__name__}); "
            "start one with `wattmesh up` or `wattmesh control-plane`, "
            "or name its admin API with --admin-address"
        ) from error


def _way_to(
    address: UnixSocket | HostPort, tls_dir: Path | None
) -> tuple[aiohttp.BaseConnector, str]:
    if isinstance(address, UnixSocket):
        return aiohttp.UnixConnector(address.path), "http://admin"
    if tls_dir is None:
        return aiohttp.TCPConnector(), f"http://{address}"
    material = read_tls(TlsFiles.of_directory(tls_dir), now=datetime.now(UTC))
    context = client_context(material, "control-plane")
    return aiohttp.TCPConnector(ssl=context), f"https://{address}"


async def _get(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url) as response:
        answer = await response.json()
        if response.status == HTTPStatus.FORBIDDEN:
            raise AdminError(f"{url}: {answer['error']['message']}")
        return answer

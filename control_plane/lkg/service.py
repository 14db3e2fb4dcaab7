"""The cache put together: files → store → ADS on a Unix socket, and the recorder beside it."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import structlog

from control_plane.addresses import UnixSocket
from control_plane.ads import AdsService, serve_ads
from control_plane.control_plane_clusters import LKG_SOCKET
from control_plane.lkg.files import CacheFiles
from control_plane.lkg.recorder import AdminSocket, Recorder
from control_plane.lkg.store import CacheStore
from control_plane.metrics import Metrics

logger = structlog.get_logger()

# An Envoy stays with a stream that works. It leaves the cache this often, and goes to a control
# plane when one is healthy; when none is, it comes back, and is sent nothing that it holds.
_CONNECTION_AGE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LkgConfig:
    """How one cache runs."""

    directory: Path  # absolute
    envoy_admin: Path
    poll_s: float = 1.0


async def run_lkg(config: LkgConfig) -> None:
    """Record and serve until cancelled. Raise SocketError when another cache serves there."""
    files = await asyncio.to_thread(CacheFiles, config.directory)
    store = CacheStore()
    await _load(files, store)
    service = AdsService(store, Metrics(), quiet=True)
    socket = UnixSocket(str(config.directory / LKG_SOCKET))
    async with (
        serve_ads(service, [socket], connection_age_s=_CONNECTION_AGE_S),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(config.envoy_admin))) as session,
    ):
        logger.info(
            "last-known-good cache is up",
            xds=str(socket),
            envoy=str(config.envoy_admin),
            recorded=store.world is not None,
        )
        recorder = Recorder(AdminSocket(session), files, store, lambda: bool(service.status()))
        await recorder.run(config.poll_s)


async def _load(files: CacheFiles, store: CacheStore) -> None:
    read = await asyncio.to_thread(files.read)
    for fault in read.faults:
        logger.error("recorded configuration is bad", fault=fault)
    if read.world is not None:
        store.put(read.world)

"""Following one Envoy by its admin API: counters at every poll, its configuration when they moved.

Nothing is recorded while that Envoy is served from this very cache: it has nothing then that the
cache lacks. What is no whole configuration is not recorded either, so an Envoy that has just
started never clears what its predecessor had. Until a whole one comes, or while something is still
warming, the configuration is read again in ever longer intervals; the counters say no more.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import aiohttp
import structlog

from control_plane.errors import PayloadError, WattmeshError
from control_plane.lkg.dump import AdminAnswers, Dumped, DumpError, parse_dump
from control_plane.lkg.files import CacheFiles
from control_plane.lkg.store import CacheStore
from control_plane.lkg.world import versions

logger = structlog.get_logger()

# Counts every update that Envoy took, of every type: some 1 ms of Envoy's time. The clusters of its
# control planes count theirs with every DNS answer.
_COUNTERS = "/stats?filter=\\.update_success$"
_NO_NEWS = b"cluster.control_plane"
_TIMEOUT = aiohttp.ClientTimeout(total=10)
_MAX_POLLS_SKIPPED = 30
_ALARMING_SKIP = 16  # polls; whoever lacks something that long is not just starting
_AWAY_S = 10.0  # without a stream: longer than Envoy needs to come back between two of them
_MAX_SHOWN = 5  # violations in one log line


class EnvoyAwayError(WattmeshError):
    """An Envoy's admin API that does not answer."""


class ReadAdmin(Protocol):
    """One GET from an Envoy's admin API."""

    async def __call__(self, path: str) -> bytes:
        """Return the body. Raise EnvoyAwayError when none comes."""


class AdminSocket:
    """An Envoy's admin API on its Unix socket."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        """`session` connects to the socket."""
        self._session = session

    async def __call__(self, path: str) -> bytes:
        """Return the body of a path."""
        try:
            async with self._session.get(f"http://envoy{path}", timeout=_TIMEOUT) as response:
                response.raise_for_status()
                return await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EnvoyAwayError(str(error) or type(error).__name__) from error


class Recorder:
    """Puts into the store and the files what one Envoy has in force."""

    def __init__(
        self,
        read: ReadAdmin,
        files: CacheFiles,
        store: CacheStore,
        is_serving: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._files = files
        self._store = store
        self._is_serving = is_serving
        self._clock = clock
        self._served_at: float | None = None  # last; None: not since it was said to be over
        self._counters: bytes | None = None  # at the last reading of the configuration
        self._settled = False  # nothing more follows from those counters
        self._skipping = 0  # polls until an unsettled configuration is read again
        self._skipped = 1  # the last such interval
        self._told: tuple[str, bool] | None = None  # why nothing is recorded, and how bad that is

    async def run(self, poll_s: float) -> None:
        """Poll until cancelled."""
        while True:
            await self.run_once()
            await asyncio.sleep(poll_s)

    async def run_once(self) -> None:
        """Poll, and log why nothing was recorded when that is another reason than before."""
        try:
            await self.poll()
        except (EnvoyAwayError, DumpError, PayloadError, OSError) as error:
            self._tell(error)

    async def poll(self) -> None:
        """Record what is new. Raise an error that says why nothing was recorded."""
        if self._note_serving():
            return
        counters = _moving(await self._read(_COUNTERS))
        if not self._is_due(counters):
            return
        self._settled, self._counters = False, counters
        answers = AdminAnswers(
            config_dump=await self._read("/config_dump?include_eds"),
            clusters=await self._read("/clusters?format=json"),
            runtime=await self._read("/runtime"),
        )
        dumped = await asyncio.to_thread(parse_dump, answers)
        await self._record(dumped)
        self._settled = not dumped.warming
        self._told = None

    def _note_serving(self) -> bool:
        """Return whether Envoy is served from here; log when that begins and ends."""
        now = self._clock()
        if self._is_serving():
            if self._served_at is None:
                logger.warning("Envoy is served from this cache: it found no control plane")
            self._served_at = now
            return True
        if self._served_at is not None and now - self._served_at > _AWAY_S:
            self._served_at = None
            logger.info("Envoy is served from this cache no more")
        return False

    def _is_due(self, counters: bytes) -> bool:
        if counters != self._counters:
            self._skipping, self._skipped = 0, 1
            return True
        if self._settled:
            return False
        self._skipping -= 1
        if self._skipping > 0:
            return False
        self._skipping = self._skipped = min(2 * self._skipped, _MAX_POLLS_SKIPPED)
        return True

    async def _record(self, dumped: Dumped) -> None:
        now = versions(dumped.world)
        if self._store.world is not None and versions(self._store.world) == now:
            return
        await asyncio.to_thread(self._files.write, dumped.world)
        first = self._store.world is None
        self._store.put(dumped.world)
        logger.info(
            "first configuration recorded" if first else "configuration recorded",
            **{type_url.rpartition(".")[2]: len(names) for type_url, names in now.items()},
        )

    def _tell(self, error: Exception) -> None:
        """Log why nothing is recorded, once until it is another reason, or lasts."""
        if isinstance(error, PayloadError):
            text = "; ".join(error.violations[:_MAX_SHOWN])
        else:
            text = str(error)
        usual = isinstance(error, EnvoyAwayError | PayloadError)  # of an Envoy that starts
        alarming = not usual or self._skipped >= _ALARMING_SKIP
        reason = f"{type(error).__name__}: {text}"
        if (reason, alarming) == self._told:
            return
        self._told = (reason, alarming)
        log = logger.warning if alarming else logger.info
        log("nothing recorded, the last good configuration stays", reason=reason)


def _moving(counters: bytes) -> bytes:
    return b"\n".join(line for line in counters.splitlines() if not line.startswith(_NO_NEWS))

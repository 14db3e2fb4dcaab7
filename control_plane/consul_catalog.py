"""The engines as Consul knows them, followed by blocking queries.

All engines are read, not only the passing ones: a critical engine is DOWN, a missing one is gone.
One query is open per control plane, whatever the number of Envoys. Rules that Consul's
documentation asks for and that py-consul leaves to its caller: an index that falls starts over, an
index below 1 counts as 1, our own time-out is longer than the wait and its 1/16 of jitter, and
queries keep a least distance whatever the answers say. py-consul carries the request (address,
token, TLS); the answer's bytes come to us undecoded, so that one parser reads every catalog.
"""

import asyncio
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import structlog
from consul import ConsulException
from consul.aio import Consul
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    wait_random_exponential,
)

from control_plane.catalog import ENGINE_SERVICE, Catalog, CatalogParser
from control_plane.errors import InputError, WattmeshError, shown
from control_plane.guard import CatalogRead
from control_plane.metrics import Metrics
from control_plane.unexpected import UnexpectedErrors

logger = structlog.get_logger()

_LAST_GOOD = "the last good catalog stays in force"
_PATH = f"/v1/health/service/{ENGINE_SERVICE}"


class CatalogReadError(WattmeshError):
    """An answer of Consul that is not a complete read; the last good catalog stays in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTimes:
    """How a watch paces itself. Seconds."""

    wait_s: int = 60  # how long Consul may keep a query open without news
    min_interval_s: float = 0.25  # between the starts of two queries, so at most 4 a second
    retry_first_s: float = 0.1
    retry_max_s: float = 1.5  # Consul's return is noticed within 2 s
    answer_margin_s: float = 5.0  # for a slow answer, besides the wait and its jitter

    @property
    def timeout_s(self) -> float:
        """Our own time-out: Consul adds up to wait/16 to the wait."""
        return self.wait_s + self.wait_s / 16 + self.answer_margin_s


@dataclass(frozen=True, slots=True)
class Position:
    """Where a watch stands: the highest index it believes, and what it asks with next."""

    seen: int = 0
    ask: int = 0  # 0 = answer at once


def next_position(position: Position, header: str | None) -> tuple[Position, bool]:
    """Return the position after an answer with this X-Consul-Index, and whether Consul came back.

    A lower index means a restored or restarted Consul: ask again from the start. An index that is
    missing or below 1 says nothing, and asking with 0 would spin: ask with 1.
    """
    index = int(header) if header and header.isascii() and header.isdecimal() else 0
    fell = index < position.seen
    if index < 1:
        return Position(seen=0, ask=1), fell
    return Position(seen=index, ask=0 if fell else index), fell


def open_consul(address: str, token: str | None) -> Consul:
    """Return py-consul's client for an address as CONSUL_HTTP_ADDR gives it.

    CONSUL_HTTP_TOKEN, CONSUL_HTTP_SSL and CONSUL_HTTP_SSL_VERIFY are honoured by py-consul itself.
    """
    parts = urlsplit(address if "//" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("", "http", "https"):
        raise WattmeshError(f"Consul address {shown(address)}: expected [http[s]://]HOST[:PORT]")
    with warnings.catch_warnings():  # py-consul hands aiohttp an argument that is deprecated there
        warnings.simplefilter("ignore", DeprecationWarning)
        return Consul(host=host, port=port or 8500, token=token, scheme=parts.scheme or None)


async def watch_consul(
    address: str,
    *,
    token: str | None = None,
    metrics: Metrics,
    times: WatchTimes | None = None,
    parser: CatalogParser | None = None,
) -> AsyncIterator[CatalogRead]:
    """Yield every catalog that differs from the one before, until cancelled.

    While Consul cannot be read nothing is yielded: whoever listens keeps the last good catalog.
    """
    async with open_consul(address, token) as client:
        watch = _Watch(client, metrics, times or WatchTimes(), parser or CatalogParser("consul"))
        last: Catalog | None = None
        while True:
            read = await watch.read()
            unchanged = read.catalog == last
            metrics.catalog_reads.labels("unchanged" if unchanged else "changed").inc()
            if not unchanged:
                last = read.catalog
                yield read


class _Watch:
    """One watch's position, pace and failures."""

    def __init__(
        self, client: Any, metrics: Metrics, times: WatchTimes, parser: CatalogParser
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._times = times
        self._parser = parser
        self._unexpected = UnexpectedErrors(metrics)
        self._position = Position()
        self._suspicious = False  # the next read follows a fallen index or failures
        self._failing = False
        self._started_s = float("-inf")

    async def read(self) -> CatalogRead:
        """Return the next complete read, however long Consul is away."""
        times = self._times
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(
                (aiohttp.ClientError, OSError, TimeoutError, ConsulException, CatalogReadError)
            ),
            wait=wait_random_exponential(multiplier=times.retry_first_s, max=times.retry_max_s),
            before_sleep=self._note_failure,
        )
        read: CatalogRead = await retrying(self._query)
        if self._failing:
            self._failing = False
            logger.info("consul is readable again", engines=len(read.catalog.entries))
        return read

    async def _query(self) -> CatalogRead:
        await self._keep_distance()
        params = [("index", str(self._position.ask)), ("wait", f"{self._times.wait_s}s")]
        status, headers, body = await self._client.http.get(
            tuple,
            _PATH,
            params=params if self._position.ask else None,
            headers=self._client.prepare_headers(),
            raw=True,
            connections_timeout=self._times.timeout_s,
        )
        catalog = self._parse(status, headers, body)
        self._position, fell = next_position(self._position, headers.get("X-Consul-Index"))
        suspicious, self._suspicious = self._suspicious or fell, fell
        if fell:
            logger.warning("consul's index went backwards", index=self._position.seen)
        return CatalogRead(catalog=catalog, index=self._position.seen, reset=suspicious)

    def _parse(self, status: int, headers: Any, body: bytes) -> Catalog:
        try:
            return _parse_answer(self._parser, status, headers, body)
        except WattmeshError:
            raise
        except Exception as error:  # whatever an answer holds, the watch goes on
            problem = self._unexpected.note("catalog", error, meanwhile=_LAST_GOOD)
            raise CatalogReadError(str(problem)) from error

    async def _keep_distance(self) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._started_s + self._times.min_interval_s - clock()))
        self._started_s = clock()

    def _note_failure(self, attempt: RetryCallState) -> None:
        error = attempt.outcome.exception() if attempt.outcome else None
        self._metrics.catalog_reads.labels("error").inc()
        self._position = Position(seen=self._position.seen, ask=0)
        self._suspicious = True
        if not self._failing:
            self._failing = True
            logger.warning(
                "consul cannot be read, the last catalog stays in force",
                error=str(error) or type(error).__name__,
            )


def _parse_answer(parser: CatalogParser, status: int, headers: Any, body: bytes) -> Catalog:
    if status != 200:
        raise CatalogReadError(f"Consul answered {status}: {shown(body[:200])}")
    try:
        catalog = parser.parse(body)
    except InputError as error:
        raise CatalogReadError(str(error)) from error
    filtered = headers.get("X-Consul-Results-Filtered-By-ACLs", "").lower() == "true"
    if filtered and not (catalog.entries or catalog.problems):
        raise CatalogReadError("Consul's ACLs hide every engine from this token")
    return catalog

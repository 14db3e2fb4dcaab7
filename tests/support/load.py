"""Chat requests: a number at once, or a steady load from a thread of its own. HTTP/2 by default.

The load is an open loop: requests start by the clock, whatever became of the earlier ones, so that
a mesh that stalls is seen as one. Every outcome is kept with its times.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one request. Times are of the monotonic clock."""

    started_s: float
    first_byte_s: float | None
    ended_s: float
    status: int | None  # None: no answer at all
    error: str | None  # None: answered 200, completely

    @property
    def was_streaming(self) -> bool:
        """Whether its answer had begun: with the status out, nobody can send it elsewhere."""
        return self.status == 200


class Load:
    """Sends `body` at `rate_per_s` between enter and exit; `outcomes` fills meanwhile."""

    def __init__(
        self,
        url: str,
        body: dict[str, Any] | None = None,
        *,
        rate_per_s: float,
        headers: Mapping[str, str] | None = None,
        http2: bool = True,
    ) -> None:
        self._url = url
        self._headers = dict(headers or {})
        self._http2 = http2
        self._body = body
        self._ends_with = b"[DONE]" if body is not None and body["stream"] else b""
        self._interval_s = 1 / rate_per_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.outcomes: list[Outcome] = []

    def failures(self, *, started_after_s: float = 0.0) -> list[Outcome]:
        """Return the requests that were not answered completely with 200."""
        return [o for o in self.outcomes if o.error and o.started_s >= started_after_s]

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Send nothing more, and wait until everything that was sent has its outcome."""
        self._stopped.set()
        self._thread.join(60)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        """Enter where this event loop itself serves what answers: nothing here may hold it up."""
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    async def _run(self) -> None:
        timeout = httpx.Timeout(30, pool=30)
        async with (
            httpx.AsyncClient(http1=not self._http2, http2=self._http2, timeout=timeout) as client,
            asyncio.TaskGroup() as requests,
        ):
            due = time.monotonic()
            while not self._stopped.is_set():
                requests.create_task(self._one(client))
                due += self._interval_s
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _one(self, client: httpx.AsyncClient) -> None:
        started = time.monotonic()
        first: float | None = None
        status: int | None = None
        text = b""
        error: str | None = None
        try:
            request = client.build_request(
                "POST", self._url, json=self._body, headers=self._headers
            )
            if self._body is None:
                del request.headers["content-length"]  # with it, an empty body follows by itself
            response = await client.send(request, stream=True)
            status = response.status_code
            async with contextlib.aclosing(response):
                async for chunk in response.aiter_raw():
                    first = first or time.monotonic()
                    text += chunk
            if status != 200 or self._ends_with not in text:
                error = f"{status}: {text[-300:].decode(errors='replace')}"
        except httpx.HTTPError as failure:
            error = repr(failure)
        self.outcomes.append(
            Outcome(
                started_s=started,
                first_byte_s=first,
                ended_s=time.monotonic(),
                status=status,
                error=error,
            )
        )


def send_chats(url: str, count: int, body: dict[str, Any], *, at_once: int = 16) -> list[int]:
    """Send chat requests over one HTTP/2 connection; return their statuses."""

    async def send_all() -> list[int]:
        limit = asyncio.Semaphore(at_once)

        async def send() -> int:
            async with limit:
                return (await client.post(f"{url}/v1/chat/completions", json=body)).status_code

        async with httpx.AsyncClient(http1=False, http2=True, timeout=60) as client:
            return await asyncio.gather(*(send() for _ in range(count)))

    return asyncio.run(send_all())

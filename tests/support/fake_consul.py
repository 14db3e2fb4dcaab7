"""A hand-written Consul that answers from a script and honours index and wait."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from tests.support.consul_json import consul_answer, consul_entry


@dataclass
class Answer:
    """One scripted answer; None as index leaves the header out."""

    index: str | None
    power: str = "100"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None


class FakeConsul:
    """Answers from a script; at its end it holds a query open for `wait`, as Consul does."""

    def __init__(self, script: Sequence[Answer]) -> None:
        self._script = list(script)
        self._news = asyncio.Event()
        self.asked: list[str | None] = []
        self.tokens: list[str | None] = []
        self.urls: list[str] = []
        self.open_now = 0  # queries that are held
        self.most_open = 0
        self.last = Answer("1")
        self.address = ""

    def say(self, answer: Answer) -> None:
        """Answer this next, also to a query that is held open."""
        self._script.append(answer)
        self._news.set()

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.query.get("index"))
        self.tokens.append(request.headers.get("X-Consul-Token"))
        self.urls.append(str(request.url))
        self._news.clear()
        if not self._script:
            await self._hold(float(request.query.get("wait", "0s").rstrip("s")))
        if self._script:
            self.last = self._script.pop(0)
        last = self.last
        headers = dict(last.headers)
        if last.index is not None:
            headers["X-Consul-Index"] = last.index
        body = consul_answer(consul_entry(gpu_power=last.power)) if last.body is None else last.body
        return web.Response(status=last.status, body=body, headers=headers)

    async def _hold(self, wait_s: float) -> None:
        self.open_now += 1
        self.most_open = max(self.most_open, self.open_now)
        try:
            async with asyncio.timeout(wait_s):
                await self._news.wait()
        except TimeoutError:
            return
        finally:
            self.open_now -= 1

    @contextlib.asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_get("/v1/health/service/wattmesh-engine", self.answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        self.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()

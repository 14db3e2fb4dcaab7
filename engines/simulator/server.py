"""The HTTP side of a simulated engine: aiohttp on a Unix socket.

A caller that goes away cancels its handler, streamed or not, and with it its place in the batch.
No request's text is ever logged.
"""

import asyncio
import contextlib
import json
import os
import signal
import uuid
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version

import structlog
from aiohttp import web

from engines.simulator.batch import Batch
from engines.simulator.metrics import EngineMetrics
from engines.simulator.openai_api import (
    ApiError,
    Generation,
    answer,
    chunk,
    last_chunk,
    model_card,
    parse_generation,
)
from engines.simulator.schedule import Schedule, Sequence
from engines.simulator.service_model import ServiceModel
from engines.simulator.words import words
from engines.sockets import SocketError, claim_socket, release_socket

logger = structlog.get_logger()

MAX_BODY_BYTES = 32 * 1024 * 1024
_STOP_GRACE_S = 28.0  # a supervisor kills after 30 s; what is cut off still needs time to exit


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What a simulated engine is started with."""

    uds: str
    model: str
    service: ServiceModel
    max_num_seqs: int
    max_num_batched_tokens: int | None = None  # None: vLLM's default on the card
    max_model_len: int
    keep_alive_s: float
    socket_mode: int
    seed: int
    stop_grace_s: float = _STOP_GRACE_S  # running requests may take this long to end


class SimulatedEngine:
    """The request handlers of one engine."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._metrics = EngineMetrics(options.model)
        self._batch = Batch(_schedule(options), self._metrics)

    def application(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors])
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completions),
                web.get("/v1/models", self._models),
                web.get("/v1/models/{model:.+}", self._model),
                web.get("/health", self._health),
                web.get("/version", self._version),
                web.get("/metrics", self._render_metrics),
            ]
        )
        return app

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        body = await request.read()
        options = self._options
        generation = parse_generation(
            body,
            chat=chat,
            model=options.model,
            max_model_len=options.max_model_len,
            seed=options.seed + zlib.crc32(body),
        )
        request_id = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        with self._batch.sequence(
            prompt_tokens=generation.prompt_tokens, max_tokens=generation.max_tokens
        ) as sequence:
            if generation.stream:
                return await self._stream(request, generation, request_id, sequence)
            await self._batch.until(sequence, generation.max_tokens)
        text = "".join(words(generation.seed, generation.max_tokens)).rstrip()
        return web.json_response(
            answer(generation, model=options.model, request_id=request_id, text=text)
        )

    async def _stream(
        self,
        request: web.Request,
        generation: Generation,
        request_id: str,
        sequence: Sequence,
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream; charset=utf-8",
                "Cache-Control": "no-store",
            }
        )
        await response.prepare(request)
        model = self._options.model
        for made, word in enumerate(words(generation.seed, generation.max_tokens), 1):
            await self._batch.until(sequence, made)
            event = chunk(generation, model=model, request_id=request_id, text=word, made=made)
            await response.write(_event(event))
        await response.write(_event(last_chunk(generation, model=model, request_id=request_id)))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _models(self, _request: web.Request) -> web.Response:
        card = model_card(self._options.model, self._options.max_model_len)
        return web.json_response({"object": "list", "data": [card]})

    async def _model(self, request: web.Request) -> web.Response:
        if request.match_info["model"] != self._options.model:
            raise ApiError(404, "The model does not exist.", "model")
        return web.json_response(model_card(self._options.model, self._options.max_model_len))

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": f"simulated-{version('wattmesh')}", "simulated": True})

    async def _render_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.render(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )


def _schedule(options: EngineOptions) -> Schedule:
    budget = options.max_num_batched_tokens
    if budget is None:
        budget = max(options.max_num_seqs, options.service.max_num_batched_tokens)
    return Schedule(
        options.service, max_num_seqs=options.max_num_seqs, max_num_batched_tokens=budget
    )


async def serve(options: EngineOptions) -> None:
    """Serve until SIGTERM or SIGINT, then finish what runs."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):  # before there is a socket to leave behind
        loop.add_signal_handler(number, stop.set)
    async with serving(options):
        await stop.wait()


@contextlib.asynccontextmanager
async def serving(options: EngineOptions) -> AsyncIterator[None]:
    """Serve while entered; on leaving take no new caller and finish what runs, within the grace.

    Raise SocketError when the path cannot be served. The socket is removed before the drain, while
    we still listen on it and nobody else can have claimed the path: after the drain the file there
    may be the socket of a successor.
    """
    claim_socket(options.uds)
    runner = web.AppRunner(
        SimulatedEngine(options).application(),
        handler_cancellation=True,
        keepalive_timeout=options.keep_alive_s,
        access_log=None,
        # aiohttp waits this long twice, for handlers and then for their tasks, before it cancels
        shutdown_timeout=options.stop_grace_s / 2,
    )
    await runner.setup()
    try:
        await _listen(runner, options)
        logger.info("SIMULATED engine serves; it is not vLLM", model=options.model, uds=options.uds)
        try:
            yield
        finally:
            release_socket(options.uds)
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, options: EngineOptions) -> None:
    """Bind the socket with its mode from the first moment on, not given it later."""
    previous = os.umask(0o777 & ~options.socket_mode)
    try:
        await web.UnixSite(runner, options.uds).start()
    except OSError as error:
        raise SocketError(
            options.uds,
            f"cannot be bound ({error.strerror})",
            "a directory that exists and that this process may write to",
        ) from error
    finally:
        os.umask(previous)


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer every refusal in the OpenAI shape."""
    try:
        return await handler(request)
    except ApiError as error:
        return web.json_response(error.body(), status=error.status)
    except web.HTTPException as error:
        refusal = ApiError(error.status, error.reason)
        return web.json_response(refusal.body(), status=error.status)


def _event(data: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"

"""The agent of one host: its engines run, and the registry knows how each of them is.

Per engine three things go on side by side: the supervised process, a probe of /health, and the
heartbeat in the registry. The heartbeat is a task of its own, so that neither a slow engine nor a
long model load lets a check expire; and an engine serves on whether or not the registry is there.

What the host's drivers say of its cards fills in what node.yaml leaves open, and an engine that
they cannot run is not started until they say otherwise.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path

import aiohttp
import structlog

from control_plane.metadata import EngineMetadata, render_metadata
from engines.engine_cards import EngineCards
from engines.gpu import GpuTable, load_gpu_table
from engines.gpu_assignment import is_news
from engines.gpu_probe import GpuProbe
from engines.gpu_watch import GpuWatch
from engines.launcher import Command, engine_command
from engines.node_config import EngineSpec, NodeConfig
from engines.registrar import (
    CheckStatus,
    Registrar,
    Registration,
    RegistryError,
    UnknownServiceError,
)
from engines.sockets import claim_socket, make_socket_directory, release_socket, restrict_socket
from engines.supervisor import Supervised

logger = structlog.get_logger()

_PROBE_INTERVAL_S = 0.5
_PROBE_TIMEOUT_S = 5.0
_MISSES = 3  # slow answers in a row before an engine counts as stalled; a refusal counts at once
# A Consul that was restarted empty is noticed by the next heartbeat, so that is never long.
_MAX_HEARTBEAT_S = 1.0
_RETRY_S = 1.0  # pause after a registry that cannot be reached
_NOTES: Mapping[CheckStatus, str] = {"passing": "answers", "critical": "does not answer"}
_SETTLE_S = 1.0  # from deregistration until every Envoy has heard of it
_ENVOY_GRACE_S = 5.0
_FIRST_SURVEY_S = 10.0  # opening NVML takes seconds where no persistence daemon keeps it awake


class EngineAgent:
    """One engine of this host: its process, its health, its registration."""

    def __init__(
        self,
        config: NodeConfig,
        spec: EngineSpec,
        registrar: Registrar,
        gpus: GpuWatch,
        table: GpuTable,
        *,
        log_dir: Path,
        vllm_python: str,
    ) -> None:
        self.id = f"{config.node}.{spec.name}"
        self.spec = spec
        self.healthy = False
        self.unexpected_errors = 0
        self._config = config
        self._registrar = registrar
        self._socket = config.socket(spec)
        self._news = asyncio.Event()  # health changed: the registry should hear of it now
        self._registered: EngineMetadata | None = None
        self._was_ready = False
        self._told_refusal: str | None = None
        command = engine_command(config, spec, vllm_python=vllm_python)
        self._cards = EngineCards(
            self.id,
            spec,
            command.env,
            gpus,
            table,
            vllm_python=vllm_python,
            on_news=self._note_cards,
        )
        self.process = Supervised(
            command,
            log_dir=log_dir,
            may_start=self._cards.wait_until_able,
            prepare=lambda: claim_socket(self._socket),
            on_exit=lambda: self._set_healthy(healthy=False),
        )

    @property
    def uses_cards(self) -> bool:
        """Whether what the host's drivers say matters to the engine."""
        return self._cards.in_use

    async def probe(self) -> None:
        """Follow /health until cancelled. A refused connection is down; slowness needs misses."""
        connector = aiohttp.UnixConnector(self._socket, force_close=True)
        timeout = aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S)
        misses = 0
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            while True:
                try:
                    async with session.get("http://engine/health") as response:
                        misses = 0
                        self._note_answer(response.status)
                except TimeoutError:
                    misses += 1
                    if misses >= _MISSES:
                        self._set_healthy(healthy=False)
                except (aiohttp.ClientError, OSError):
                    self._set_healthy(healthy=False)
                await asyncio.sleep(_PROBE_INTERVAL_S)

    async def keep_registered(self) -> None:
        """Keep the registry's view current until cancelled, whatever the registry does."""
        reachable = True
        while True:
            try:
                await self._report()
            except RegistryError as error:
                if reachable:
                    logger.warning(
                        "registry not told, trying on", engine=self.id, reason=str(error)
                    )
                reachable, pause_s = False, _RETRY_S
            except Exception:  # a host's engines outlive whatever a registry client may raise
                self.unexpected_errors += 1
                logger.exception("registry not told", engine=self.id, errors=self.unexpected_errors)
                reachable, pause_s = False, _RETRY_S
            else:
                if not reachable:
                    logger.info("registry reached again", engine=self.id)
                reachable, pause_s = True, min(self._config.ttl_s / 4, _MAX_HEARTBEAT_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._news.wait()
            self._news.clear()

    async def leave(self) -> None:
        """Take the engine out of the registry, if that can be reached."""
        try:
            await self._registrar.deregister(self.id)
        except RegistryError as error:
            logger.warning("not deregistered", engine=self.id, reason=str(error))

    def remove_socket(self) -> None:
        """Remove the socket file of an engine that has ended."""
        release_socket(self._socket)

    async def _report(self) -> None:
        metadata = self._metadata()
        if is_news(self._registered, metadata):
            await self._register(metadata)
        status: CheckStatus = "passing" if self.healthy else "critical"
        self._told_refusal = self._cards.refusal
        note = _NOTES[status]
        if self._told_refusal is not None:
            note = f"not started: {self._told_refusal}"
        try:
            await self._registrar.heartbeat(self.id, status, note)
        except UnknownServiceError:
            logger.info("not known to the registry, registering again", engine=self.id)
            await self._register(metadata)
            await self._registrar.heartbeat(self.id, status, note)

    async def _register(self, metadata: EngineMetadata) -> None:
        tags = [f"model={self.spec.model}"]
        if self.spec.version:
            tags.append(f"version={self.spec.version}")
        await self._registrar.register(
            Registration(
                id=self.id,
                address=self._config.address,
                port=self._config.mesh_port,
                ttl_s=self._config.ttl_s,
                status="passing" if self.healthy else "critical",
                tags=tuple(tags),
                meta=render_metadata(metadata),
            )
        )
        self._registered = metadata
        logger.info(
            "registered",
            engine=self.id,
            state=metadata.state,
            gpu=metadata.gpu_model,
            power_limit_w=metadata.gpu_power_limit_w,
        )

    def _metadata(self) -> EngineMetadata:
        """Return what the engine declares now: node.yaml, and what the drivers say besides."""
        state = "ready" if self.healthy or self._was_ready else "warming"
        return self._config.metadata(self._cards.declared(), state)

    def _note_cards(self) -> None:
        if self._cards.refusal != self._told_refusal or is_news(self._registered, self._metadata()):
            self._news.set()

    def _note_answer(self, status: int) -> None:
        if status == 200 and not self.healthy:
            restrict_socket(self._socket)
        self._set_healthy(healthy=status == 200)

    def _set_healthy(self, *, healthy: bool) -> None:
        if healthy == self.healthy:
            return
        self.healthy = healthy
        self._was_ready = self._was_ready or healthy
        logger.info("engine answers" if healthy else "engine does not answer", engine=self.id)
        self._news.set()


async def run_agent(
    config: NodeConfig,
    registrar: Registrar,
    *,
    log_dir: Path,
    vllm_python: str,
    commands: Sequence[Command] = (),
    gpus: GpuWatch | None = None,
) -> None:
    """Run a host's engines, and further commands beside them, until cancelled.

    `gpus` follows the host's cards (default: by NVML and AMD's tools).

    On cancellation the engines leave the registry first; after a moment in which every Envoy
    hears of it they are ended, then the other commands, and no socket stays behind.
    """
    _make_directories(config, log_dir)
    gpus, table = gpus or GpuWatch(GpuProbe().survey), load_gpu_table()
    engines = [
        EngineAgent(config, spec, registrar, gpus, table, log_dir=log_dir, vllm_python=vllm_python)
        for spec in config.engines
    ]
    others = [
        Supervised(command, log_dir=log_dir, stop_grace_s=_ENVOY_GRACE_S) for command in commands
    ]
    try:
        async with (
            background(other.run() for other in others),
            _followed(gpus, in_use=any(engine.uses_cards for engine in engines)),
            background(engine.process.run() for engine in engines),
        ):
            try:
                async with asyncio.TaskGroup() as tasks:
                    for engine in engines:
                        tasks.create_task(engine.probe())
                        tasks.create_task(engine.keep_registered())
                    if not engines:  # a host with none still runs its Envoy
                        await asyncio.Event().wait()
            finally:
                await asyncio.gather(*(engine.leave() for engine in engines))
                await asyncio.sleep(_SETTLE_S)
    finally:
        for engine in engines:
            engine.remove_socket()


@contextlib.asynccontextmanager
async def _followed(gpus: GpuWatch, *, in_use: bool) -> AsyncIterator[None]:
    """Survey the cards while the context is open, if any engine uses them; the first one before."""
    async with background([gpus.run()] if in_use else []):
        if in_use:
            await gpus.wait_first(_FIRST_SURVEY_S)
        yield


@contextlib.asynccontextmanager
async def background(coroutines: Iterable[Coroutine[None, None, None]]) -> AsyncIterator[None]:
    """Run coroutines while the context is open; at its end cancel them and wait until all ended.

    One that fails is told at once: none of them ends by itself.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    for task in tasks:
        task.add_done_callback(_tell_failure)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _tell_failure(task: "asyncio.Future[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("a task ended that should run on", exc_info=task.exception())


def _make_directories(config: NodeConfig, log_dir: Path) -> None:
    make_socket_directory(config.socket_dir, config.socket_group)
    log_dir.mkdir(parents=True, exist_ok=True)

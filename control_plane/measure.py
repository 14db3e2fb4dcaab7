"""Measuring engines: their metrics read slowly through the node Envoys, beliefs kept, news told.

The pace is bounded from both sides: no engine more often than each five seconds, and no more than
a hundred scrapes a second, however large the fleet. What is learnt is arithmetic of `posterior`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import aiohttp
import structlog
from yarl import URL

from control_plane.consul_calls import ConsulCallError
from control_plane.fleet import Engine, EngineState, Fleet
from control_plane.metrics import Metrics
from control_plane.mtls.server import TlsClient
from control_plane.observations import MAX_SCRAPE_BYTES, Observation, parse_observation
from control_plane.plan import EnginePlan, NodePlan, Plan
from control_plane.planner import Corrections
from control_plane.policy import Policy
from control_plane.posterior import Posterior, Sample, correct, declared_capacity, learn, measure
from control_plane.posterior_store import PosteriorStore
from control_plane.unexpected import UnexpectedErrors

logger = structlog.get_logger()

MIN_INTERVAL_S = 5.0  # between two scrapes of an engine
_S_PER_ENGINE = 0.01
_TIMEOUT_S = 3.0
_CONCURRENT = 16
_SAVE_EVERY_S = 30.0
_PAUSE_S = 1.0  # while there is nothing to measure

Scrape = Callable[[NodePlan, EnginePlan], Awaitable[bytes]]


class ScrapeError(Exception):
    """An engine's metrics could not be read."""


class Measured(Protocol):
    """What is measured, and who hears of it; the control plane is it."""

    metrics: Metrics
    fleet: Fleet | None

    @property
    def plan(self) -> Plan | None: ...
    @property
    def policy(self) -> Policy | None: ...
    def take_corrections(self, corrections: Corrections) -> None: ...


@dataclass(frozen=True, slots=True)
class _Target:
    node: NodePlan
    planned: EnginePlan
    engine: Engine


class Meter:
    """Measures the ready engines of a plane, round by round. Used from one event loop."""

    def __init__(
        self,
        plane: Measured,
        scrape: Scrape,
        *,
        store: PosteriorStore | None = None,
        leads: Callable[[], bool] = lambda: True,
        min_interval_s: float = MIN_INTERVAL_S,
    ) -> None:
        self.posteriors: dict[str, Posterior] = {}
        self._plane = plane
        self._scrape = scrape
        self._store = store
        self._leads = leads
        self._unexpected = UnexpectedErrors(plane.metrics)
        self._min_interval_s = min_interval_s
        self._last: dict[str, Observation] = {}
        self._told: Corrections = {}
        self._unreadable: set[str] = set()
        self._unsaved = False

    async def run(self) -> None:
        """Measure until cancelled, from what is known of before; follow while another leads."""
        loaded = False
        saved_s = 0.0
        clock = asyncio.get_running_loop().time
        while True:
            if not self._leads():
                loaded = False
                await self._follow()
                continue
            loaded = loaded or await self._load(self.posteriors)
            told = self._told
            await self.measure_once()
            if loaded and (told is not self._told or clock() - saved_s >= _SAVE_EVERY_S):
                saved_s = clock()
                await self._save()

    async def _follow(self) -> None:
        """Take what the leader learnt, so that every replica plans the same."""
        self._last = {}
        await self._load({})
        await asyncio.sleep(self._min_interval_s)

    async def _load(self, own: Mapping[str, Posterior]) -> bool:
        """Take what is kept, and of our own what rests on more samples; return whether it is read.

        A store that is empty, as after a loss, is no proof against what is known.
        """
        if self._store is None or self._plane.fleet is None:
            return False
        try:
            kept = await self._store.load()
        except ConsulCallError as error:
            self._note_store(error)
            return False
        better = {k: v for k, v in own.items() if k not in kept or v.samples > kept[k].samples}
        self.posteriors = (kept | better) or self.posteriors
        self._forget(self._targets())
        self._tell()
        return True

    async def _save(self) -> None:
        if self._store is None:
            return
        try:
            self.posteriors |= await self._store.save(self.posteriors)
        except ConsulCallError as error:
            self._note_store(error)
            return
        self._note_store(None)

    def _note_store(self, error: ConsulCallError | None) -> None:
        if error is not None and not self._unsaved:
            logger.warning("measured capacities not kept, trying on", reason=str(error))
        if error is None and self._unsaved:
            logger.info("measured capacities kept again")
        self._unsaved = error is not None

    async def measure_once(self) -> None:
        """Scrape every engine once, spread over the interval; then correct, and tell what moved."""
        targets = self._targets()
        self._forget(targets)
        if not targets:
            await asyncio.sleep(_PAUSE_S)
        interval_s = max(self._min_interval_s, len(targets) * _S_PER_ENGINE)
        slots = asyncio.Semaphore(_CONCURRENT)
        async with asyncio.TaskGroup() as tasks:
            for target in targets.values():
                tasks.create_task(self._observe(target, slots))
                await asyncio.sleep(interval_s / len(targets))
        self._correct(targets)

    def _targets(self) -> dict[str, _Target]:
        plan, fleet, policy = self._plane.plan, self._plane.fleet, self._plane.policy
        if plan is None or fleet is None or policy is None:
            return {}
        engines = {engine.id: engine for node in fleet.nodes for engine in node.engines}
        return {
            planned.id: _Target(node, planned, engines[planned.id])
            for node in plan.nodes
            for planned in node.engines
            if planned.state is EngineState.READY
            and planned.id in engines
            and policy.model(planned.pool.model).corrects
        }

    def _forget(self, targets: Mapping[str, _Target]) -> None:
        """What an engine that went taught stays while it is registered: it may only restart."""
        fleet = self._plane.fleet
        registered = {e.id for node in fleet.nodes for e in node.engines} if fleet else set()
        self.posteriors = {k: v for k, v in self.posteriors.items() if k in registered}
        self._last = {k: v for k, v in self._last.items() if k in targets}
        self._unreadable &= registered

    async def _observe(self, target: _Target, slots: asyncio.Semaphore) -> None:
        engine_id = target.planned.id
        async with slots:
            try:
                outcome = await self._sample(target)
            except Exception as error:  # noqa: BLE001 whatever one engine tells, the others are measured on
                meanwhile = "it counts as before"
                outcome = str(self._unexpected.note("measuring", error, meanwhile=meanwhile))
        result = "read" if engine_id in self._last else "failed"
        self._plane.metrics.capacity_scrapes.labels(result).inc()
        state = self.posteriors.get(engine_id)
        self.posteriors[engine_id] = learn(state, target.engine.declaration, outcome)

    async def _sample(self, target: _Target) -> Sample | str:
        fleet, engine_id = self._plane.fleet, target.planned.id
        before = self._last.pop(engine_id, None)
        try:
            text = await self._scrape(target.node, target.planned)
        except ScrapeError as error:
            if engine_id not in self._unreadable:
                self._unreadable.add(engine_id)
                logger.warning("engine not measured", engine=engine_id, reason=str(error))
            return f"its metrics cannot be read: {error}"
        now = parse_observation(text, asyncio.get_running_loop().time())
        if now is None:
            return "its metrics are not in Prometheus' text form"
        if engine_id in self._unreadable:
            self._unreadable.discard(engine_id)
            logger.info("engine measured again", engine=engine_id)
        self._last[engine_id] = now
        if before is None or fleet is None or fleet.reference is None:
            return "first scrape"
        declared = declared_capacity(target.engine, target.planned.gpu_power, fleet.reference)
        return measure(before, now, declared)

    def _correct(self, targets: Mapping[str, _Target]) -> None:
        policy = self._plane.policy
        if policy is None:
            return
        pools: dict[str, dict[str, Posterior]] = {}
        models: dict[str, str] = {}
        for engine_id, target in targets.items():
            pool = target.planned.pool
            models[pool.cluster] = pool.model
            pools.setdefault(pool.cluster, {})[engine_id] = self.posteriors[engine_id]
        for cluster, pool_states in pools.items():
            bounds = policy.model(models[cluster]).correction.bounds
            self.posteriors |= correct(pool_states, bounds)
        self._tell()

    def _tell(self) -> None:
        """Tell the corrections in force, those of engines that pause included."""
        corrections = {
            (engine_id, state.fingerprint): round(state.factor, 4)
            for engine_id, state in sorted(self.posteriors.items())
            if state.correction
        }
        if corrections == self._told:
            return
        for engine_id, fingerprint in corrections.keys() - self._told.keys():
            state = self.posteriors[engine_id]
            logger.info(
                "declared capacity corrected by measurement",
                engine=engine_id,
                declared=fingerprint,
                factor=round(state.factor, 3),
                samples=state.samples,
            )
        self._told = corrections
        self._plane.take_corrections(corrections)


def scrape_through_nodes(session: aiohttp.ClientSession, tls: TlsClient | None = None) -> Scrape:
    """Return the way to engines' metrics: their node's mesh listener, plain without `tls`."""
    scheme = "http" if tls is None else "https"
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)

    async def scrape(node: NodePlan, engine: EnginePlan) -> bytes:
        path = f"/wattmesh/engines/{engine.engine}/metrics"
        try:
            url = URL.build(scheme=scheme, host=node.address, port=node.port, path=path)
            context = True if tls is None else tls.context()
            async with session.get(url, timeout=timeout, ssl=context) as response:
                if response.status != 200:
                    raise ScrapeError(f"HTTP {response.status}")
                return await _read_bounded(response)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ScrapeError(str(error) or type(error).__name__) from error

    return scrape


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    text = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        text += chunk
        if len(text) > MAX_SCRAPE_BYTES:
            raise ScrapeError(f"more than {MAX_SCRAPE_BYTES} bytes")
    return bytes(text)

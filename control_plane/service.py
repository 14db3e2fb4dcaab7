"""The control plane put together: sources → guard → debounce → plan → store → ADS.

One direction; every arrow before the store is a pure function. Nothing is served until the first
complete catalog and the first good policy were read. From then on a bad policy, a failed read or
refused resources leave the last good ones in force.
"""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import structlog

from control_plane.addresses import HostPort, UnixSocket
from control_plane.admin import serve_admin
from control_plane.ads import AdsService, serve_ads
from control_plane.canary_wave import Hold
from control_plane.catalog_files import (
    POLL_S,
    FileRead,
    follow_catalog_file,
    follow_policy_file,
)
from control_plane.connect_rate import ConnectRate
from control_plane.consul_catalog import open_consul, watch_consul
from control_plane.debounce import Debounce, Pending, due_at_s, note_change
from control_plane.errors import Problem
from control_plane.explain import Explanation, explain
from control_plane.fleet import Fleet, FleetBuilder
from control_plane.guard import HOLD_S, CatalogRead, GuardState, admit_catalog, pass_time
from control_plane.leader import Leadership
from control_plane.measure import MIN_INTERVAL_S, Meter, scrape_through_nodes
from control_plane.metrics import Metrics
from control_plane.mtls.files import TlsFiles, TlsMaterial, TlsSource
from control_plane.mtls.server import TlsClient
from control_plane.plan import MeshTls, MeshTlsMode, Plan
from control_plane.plan_metrics import PlanGauges
from control_plane.planner import NO_CORRECTIONS, Corrections, Planner
from control_plane.policy import Policy
from control_plane.posterior import Posterior
from control_plane.posterior_store import ConsulPosteriors, PosteriorStore
from control_plane.quarantine import Refusal
from control_plane.rendering import Renderer
from control_plane.resources import View
from control_plane.rest import serve_rest
from control_plane.snapshot import Snapshot
from control_plane.store import SnapshotStore
from control_plane.unexpected import UnexpectedErrors
from control_plane.xds_status import StreamStatus
from engines.gpu import GpuTable, load_gpu_table

logger = structlog.get_logger()

_LAST_GOOD = "the last good state stays in force"
_EDGE_GRACE_S = 1.0  # until an edge that went shares the limits no more

CatalogSource = AsyncIterator[CatalogRead]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneConfig:
    """How one control plane runs."""

    catalog: str  # "consul", or the path of a recorded answer
    policy: Path | None  # None = the empty policy
    xds_addresses: tuple[UnixSocket | HostPort, ...]
    admin_address: UnixSocket | HostPort
    rest_address: HostPort | None = None  # xDS over REST, for clients that speak no gRPC
    tls: TlsFiles | None = None  # for everything on TCP
    mesh_tls: MeshTlsMode | None = None  # between edges and nodes, by the CAs of `tls`
    consul_address: str = "http://127.0.0.1:8500"
    consul_token: str | None = None
    debounce: Debounce = field(default_factory=Debounce)
    hold_s: float = HOLD_S
    connect_rate: ConnectRate = field(default_factory=ConnectRate)  # of new xDS streams
    measure_interval_s: float = MIN_INTERVAL_S  # between two scrapes of an engine


class ControlPlane:
    """What is in force, and what is about to be. Used from one event loop."""

    def __init__(
        self,
        store: SnapshotStore,
        metrics: Metrics,
        gpus: GpuTable,
        *,
        guarded: bool,
        hold_s: float,
    ) -> None:
        self.metrics = metrics
        self.guard = GuardState()
        self.fleet: Fleet | None = None
        self.streams: Callable[[], list[StreamStatus]] = list
        self.view_of: Callable[[str], View | None] = lambda _node: None
        self._store = store
        self._gpus = gpus
        self._fleets, self._planner = FleetBuilder(gpus), Planner()
        self._unexpected = UnexpectedErrors(metrics)
        self._gauges = PlanGauges(metrics)
        self._guarded = guarded
        self._hold_s = hold_s
        self._policy: Policy | None = None
        self._policy_problems: tuple[Problem, ...] = ()
        self._catalog_problems: tuple[Problem, ...] = ()  # of a catalog file that is refused
        self._plan_problems: tuple[Problem, ...] = ()  # of inputs that could not be planned
        self.posteriors: Callable[[], Mapping[str, Posterior]] = dict
        self._corrections: Corrections = NO_CORRECTIONS
        self._mesh_tls: MeshTls | None = None
        self._edges: tuple[str, ...] = ()  # that share the limits
        self._connected: tuple[str, ...] = ()
        self._replan = False  # something besides the edges changed
        self._pending: Pending | None = None
        self._wake = asyncio.Event()

    @property
    def plan(self) -> Plan | None:
        """The plan in force."""
        return self._store.plan

    @property
    def policy(self) -> Policy | None:
        """The policy in force."""
        return self._policy

    def explain(self, subject: str) -> tuple[Explanation, ...]:
        """Return how a model's engines, or one engine, come by their weights; none if unknown."""
        if self.fleet is None or self._policy is None or self.plan is None:
            return ()
        return explain(self.fleet, self._policy, self.plan, subject, self.posteriors())

    def served(self, node: str) -> Snapshot | None:
        """Return what an Envoy is served now, by its node ID: one that is connected, or of a host.

        None when nobody knows it.
        """
        view = self.view_of(node)
        known = self.plan is not None and any(item.id == node for item in self.plan.nodes)
        if view is None and not known:
            return None
        if view is None:
            return self._store.snapshot(View(role="node", node_id=node))
        return self._store.snapshot(view, node)

    def quarantined(self) -> tuple[Refusal, ...]:
        """Return the contents that no Envoy is sent, because one refused them."""
        return self._store.quarantined

    def clear_quarantine(self, version: str | None) -> tuple[Refusal, ...]:
        """Offer a refused version to Envoys again, or everything with None; return what it was."""
        return self._store.clear_quarantine(version)

    def held(self) -> tuple[Hold, ...]:
        """Return the changes that wait until a few Envoys acknowledged them."""
        return self._store.held

    def problems(self) -> tuple[Problem, ...]:
        """Return what is wrong with the inputs now: refused documents, then dropped entries."""
        dropped = self.plan.problems if self.plan else ()
        refused = (*self._policy_problems, *self._catalog_problems, *self._plan_problems)
        return (*refused, *dropped)

    def not_ready(self) -> str | None:
        """Return why nothing is served yet, or None when it is."""
        if self.plan is not None:
            return None
        if self.guard.seen is None:
            return _because("the catalog was not read yet", self._catalog_problems)
        if self.guard.catalog is None:
            return "the catalog was empty at first sight; waiting for an engine or a second proof"
        if self._policy is None:
            return _because("there is no good policy yet", self._policy_problems)
        return _because("the first plan is about to be published", self._plan_problems)

    async def follow_catalog(
        self, reads: AsyncIterator[CatalogRead | FileRead[CatalogRead]]
    ) -> None:
        """Take every catalog of a source, until cancelled."""
        async for item in reads:
            read = item.value if isinstance(item, FileRead) else item
            if isinstance(item, FileRead):
                self._catalog_problems = item.problems
                self._note_refused("catalog", item)
            if read is not None:
                self._take_catalog(read)

    async def follow_policy(self, reads: AsyncIterator[FileRead[Policy]]) -> None:
        """Take every good policy of a source, until cancelled."""
        async for read in reads:
            self._policy_problems = read.problems
            self.metrics.policy_errors.set(len(read.problems))
            self._note_refused("policy", read)
            if read.value is not None and read.value != self._policy:
                logger.info("policy read", models=len(read.value.models))
                self._policy = read.value
                self._note_change()

    def _note_refused(self, what: str, read: FileRead[Any]) -> None:
        """Log what is wrong with a file that was read."""
        if read.error is None:
            _log_problems(f"{what} refused, the last good one stays in force", read.problems)
        else:
            self._unexpected.note(what, read.error, meanwhile=_LAST_GOOD)

    def take_corrections(self, corrections: Corrections) -> None:
        """Take what engines were measured to do of what they declare."""
        self._corrections = corrections
        self._note_change()

    def take_mesh_tls(self, mesh_tls: MeshTls) -> None:
        """Take how edges and nodes talk to each other, and which CAs they trust."""
        if mesh_tls != self._mesh_tls:
            self._mesh_tls = mesh_tls
            self._note_change(replan=False)

    def take_edges(self, edges: tuple[str, ...]) -> None:
        """Take the node IDs of the edges that are connected now; limits are shared among them."""
        gone = set(self._edges) - set(edges)
        if gone:  # one that only reconnects is back at once, and its share with it
            self._edges = tuple(sorted({*self._edges, *edges}))
            asyncio.get_running_loop().call_later(_EDGE_GRACE_S, self._drop_edges)
        else:
            self._edges = edges
        self._connected = edges
        self._note_edges()

    def _drop_edges(self) -> None:
        if self._edges != self._connected:
            self._edges = self._connected
            self._note_edges()

    def _note_edges(self) -> None:
        if self.plan is not None and self.plan.limited:
            self._note_change(replan=False)

    async def publish_changes(self, debounce: Debounce) -> None:
        """Publish a plan for every burst of changes, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._sleep_until(self._next_s(debounce))
            now_s = loop.time()
            self._release_held(now_s)
            if self._pending is not None and due_at_s(self._pending, debounce) <= now_s:
                self._pending = None
                self._publish()

    def _take_catalog(self, read: CatalogRead) -> None:
        now_s = asyncio.get_running_loop().time()
        before = self.guard
        if self._guarded:
            self.guard = admit_catalog(before, read, now_s, hold_s=self._hold_s)
        else:
            self.guard = GuardState(seen=read.catalog)
        _log_problems(
            "catalog entry unusable",
            tuple(
                p for p in read.catalog.problems if not before.seen or p not in before.seen.problems
            ),
        )
        held = sorted(set(self.guard.held) - set(before.held))
        if held:
            logger.warning(
                "engines missing after a suspected loss of the catalog, held as last seen",
                engines=held[:20],
                count=len(held),
                hold_s=self._hold_s,
            )
        self.metrics.catalog_problems.set(len(read.catalog.problems))
        self.metrics.catalog_held.set(len(self.guard.held))
        if self.guard.catalog != before.catalog:
            self._note_change()
        self._wake.set()  # the guard's next release may have moved

    def _release_held(self, now_s: float) -> None:
        before, self.guard = self.guard, pass_time(self.guard, now_s)
        if self.guard.catalog != before.catalog:
            gone = sorted(set(before.held) - set(self.guard.held))
            logger.warning("hold is over, the loss is believed", engines=gone[:20], count=len(gone))
            self.metrics.catalog_held.set(len(self.guard.held))
            self._note_change()

    def _note_change(self, *, replan: bool = True) -> None:
        self._replan |= replan
        self._pending = note_change(self._pending, asyncio.get_running_loop().time())
        self._wake.set()

    def _next_s(self, debounce: Debounce) -> float | None:
        times = [self.guard.release_at_s]
        if self._pending is not None:
            times.append(due_at_s(self._pending, debounce))
        return min((at_s for at_s in times if at_s is not None), default=None)

    async def _sleep_until(self, at_s: float | None) -> None:
        self._wake.clear()
        timeout_s = None if at_s is None else max(0.0, at_s - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def _publish(self) -> None:
        """Put a plan of what is believed now in force; the last one stays if none can be made."""
        try:
            self._make_plan()
        except Exception as error:  # noqa: BLE001 whatever one input does to planning, the rest goes on
            self._fleets, self._planner = FleetBuilder(self._gpus), Planner()  # half done
            problem = self._unexpected.note("plan", error, meanwhile=_LAST_GOOD)
            self._plan_problems = (problem,)

    def _make_plan(self) -> None:
        catalog = self.guard.catalog
        if catalog is None or self._policy is None:
            return
        before = self.plan
        if before is not None and not self._replan:
            edges = self._edges if before.limited else ()
            self._store.publish(replace(before, edges=edges, mesh_tls=self._mesh_tls))
            return
        self._replan = False
        with self.metrics.plan_seconds.time():
            fleet = self._fleets.build(catalog)
            plan = self._planner.plan(fleet, self._policy, time.time(), self._corrections)
            # Without a limit nobody needs to know; with thousands of edges each would cost a push.
            edges = self._edges if plan.limited else ()
            plan = replace(plan, edges=edges, mesh_tls=self._mesh_tls)
            first, changed = before is None, plan != before
            self._store.publish(plan)
        self.fleet, self._plan_problems = fleet, ()
        self._gauges.show(plan)
        if changed:
            logger.info(
                "first plan published" if first else "plan published",
                nodes=len(plan.nodes),
                engines=len(plan.engines),
                models=len(plan.models),
                problems=len(plan.problems),
            )


async def run_control_plane(
    config: ControlPlaneConfig,
    *,
    catalog: CatalogSource | None = None,
    metrics: Metrics | None = None,
) -> None:
    """Run until cancelled. `catalog` is a source within this process, used instead of config's."""
    metrics = metrics or Metrics()
    renderer = Renderer()
    store = SnapshotStore(renderer.render, metrics, renderer.part, renderer.drop)
    tls = None if config.tls is None else TlsSource(config.tls, on_problems=_log_tls_problems)
    service = AdsService(store, metrics, tls, connect_rate=config.connect_rate)
    guarded = catalog is None and config.catalog == "consul"
    plane = ControlPlane(store, metrics, load_gpu_table(), guarded=guarded, hold_s=config.hold_s)
    plane.streams = service.status
    plane.view_of = service.view_of
    service.on_edges = plane.take_edges
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        kept: PosteriorStore | None = None
        leadership: Leadership | None = None
        if guarded:
            consul = open_consul(config.consul_address, config.consul_token)
            client = await stack.enter_async_context(consul)
            kept = ConsulPosteriors(client)
            leadership = Leadership(client, name=f"{socket.gethostname()}:{os.getpid()}")
        meter = Meter(
            plane,
            scrape_through_nodes(session, _mesh_client(config, tls)),
            store=kept,
            leads=lambda: leadership is None or leadership.leads,
            min_interval_s=config.measure_interval_s,
        )
        plane.posteriors = lambda: meter.posteriors
        await stack.enter_async_context(serve_admin(plane, config.admin_address, tls))
        await stack.enter_async_context(serve_ads(service, config.xds_addresses, tls))
        if config.rest_address is not None:
            await stack.enter_async_context(
                serve_rest(store, config.rest_address, tls, service.uses)
            )
        logger.info(
            "control plane is up",
            catalog=config.catalog,
            xds=[str(address) for address in config.xds_addresses],
            admin=str(config.admin_address),
        )
        if tls is not None and config.mesh_tls is not None:
            plane.take_mesh_tls(mesh_tls_of(config.mesh_tls, tls.current))
        async with asyncio.TaskGroup() as tasks:
            if tls is not None and config.mesh_tls is not None:
                tasks.create_task(_follow_authorities(plane, config.mesh_tls, tls))
            tasks.create_task(plane.follow_catalog(catalog or _catalog_source(config, metrics)))
            tasks.create_task(plane.follow_policy(_policy_source(config)))
            tasks.create_task(plane.publish_changes(config.debounce))
            tasks.create_task(meter.run())
            if leadership is not None:
                tasks.create_task(leadership.seek())


async def _follow_authorities(plane: ControlPlane, mode: MeshTlsMode, tls: TlsSource) -> None:
    """Push the CAs that the mesh trusts whenever their file changes, until cancelled."""
    while True:
        await asyncio.sleep(POLL_S)
        plane.take_mesh_tls(mesh_tls_of(mode, await asyncio.to_thread(tls.refresh)))


def mesh_tls_of(mode: MeshTlsMode, material: TlsMaterial) -> MeshTls:
    """Return the mesh's TLS under the CAs and in the trust domain of our own certificate."""
    return MeshTls(mode, material.identity.trust_domain, material.authorities.decode())


def _mesh_client(config: ControlPlaneConfig, tls: TlsSource | None) -> TlsClient | None:
    """Return what engines are measured with: plain HTTP while nodes take it."""
    return None if tls is None or config.mesh_tls in (None, "accept") else TlsClient(tls, "node")


def _catalog_source(
    config: ControlPlaneConfig, metrics: Metrics
) -> AsyncIterator[CatalogRead | FileRead[CatalogRead]]:
    if config.catalog == "consul":
        return watch_consul(config.consul_address, token=config.consul_token, metrics=metrics)
    return follow_catalog_file(Path(config.catalog))


async def _policy_source(config: ControlPlaneConfig) -> AsyncIterator[FileRead[Policy]]:
    if config.policy is None:
        yield FileRead(value=Policy())
        return
    async for read in follow_policy_file(config.policy):
        yield read


def _because(text: str, problems: tuple[Problem, ...]) -> str:
    return f"{text}: {'; '.join(str(problem) for problem in problems)}" if problems else text


def _log_tls_problems(problems: tuple[Problem, ...]) -> None:
    _log_problems("certificate files refused, the last good ones stay in force", problems)


def _log_problems(event: str, problems: tuple[Problem, ...]) -> None:
    for problem in problems:
        logger.warning(event, problem=str(problem))

"""`wattmesh up`: a whole mesh on this machine, from nothing to its first answer.

Control plane and agents are tasks of this process; engines and Envoys are its children. Everything
is stopped in the order that loses no request: engines leave the registry, then end, then the
Envoys, then the control plane. No process and no socket stays behind; logs do.
"""

import asyncio
import contextlib
import shutil
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control_plane.addresses import HostPort, UnixSocket, parse_host_port
from control_plane.cli import FINDING, OK
from control_plane.cli.admin_client import AdminError, ask_admin
from control_plane.cli.dev_consul import dev_consul
from control_plane.cli.envoys import envoy_command
from control_plane.cli.first_answer import first_answer
from control_plane.cli.leftovers import end_leftovers
from control_plane.cli.offline import NOTHING_STARTED, load_policy
from control_plane.cli.ports import free_ports, is_free, listen_fault
from control_plane.cli.run_dir import (
    ADMIN_SOCKET,
    XDS_SOCKET,
    clean_run_dir,
    default_run_dir,
    hold_run_dir,
    make_run_dir,
)
from control_plane.cli.runtime import run_until_signal
from control_plane.cli.up_nodes import load_nodes, with_tiny_model
from control_plane.cli.up_report import Progress, print_addresses, print_answer, print_engines
from control_plane.consul_catalog import open_consul
from control_plane.embedded import EmbeddedRegistry
from control_plane.errors import WattmeshError
from control_plane.service import CatalogSource, ControlPlaneConfig, run_control_plane
from engines.agent import run_agent
from engines.node_config import NodeConfig
from engines.registrar import ConsulRegistrar, Registrar
from engines.supervisor import Supervised
from observability.logs import configure_logs

_DEFAULT_LISTEN = HostPort("127.0.0.1", 10000)
_WORKERS = 2  # of each Envoy: several share this machine
_DEADLINE_S = {"simulated": 60.0, "vllm": 900.0}
_POLL_S = 0.1
_STOP_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `wattmesh up` was asked for."""

    engine: str  # "simulated" or "vllm"
    nodes: tuple[Path, ...] = ()
    policy: Path | None = None
    listen: str | None = None
    run_dir: Path | None = None
    once: bool = False
    consul_address: str | None = None
    vllm_python: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Registry:
    """Where the engines of this mesh are registered and read."""

    registrar: Registrar
    catalog: CatalogSource | None  # a source of this process; None = watch Consul
    consul_address: str = ""


def run_up(options: UpOptions, *, level: str) -> int:
    """Run a mesh until it is stopped, or until its first answer; return the exit status."""
    configure_logs(level)
    progress = Progress()
    run_dir = make_run_dir(options.run_dir or default_run_dir())
    with hold_run_dir(run_dir):
        if ended := end_leftovers(run_dir):
            progress.step(f"ended {ended} processes of a run that was killed here")
        nodes = load_nodes(options.nodes, run_dir, lean=options.engine == "vllm")
        load_policy(options.policy, meanwhile=NOTHING_STARTED)
        edge = _edge_address(options.listen, progress)
        mesh = _Mesh(options, run_dir, nodes, edge, progress)
        try:
            return run_until_signal(
                mesh.run(), on_first=lambda: progress.step("stopping; a second Ctrl-C forces it")
            )
        finally:
            clean_run_dir(run_dir)
            progress.step(f"stopped; the logs stay in {run_dir / 'logs'}")


class _Mesh:
    """One run of `wattmesh up`."""

    def __init__(
        self,
        options: UpOptions,
        run_dir: Path,
        nodes: Sequence[NodeConfig],
        edge: HostPort,
        progress: Progress,
    ) -> None:
        self._options = options
        self._run_dir = run_dir
        self._logs = run_dir / "logs"
        self._nodes = nodes
        self._edge = edge
        self._progress = progress
        self._xds = UnixSocket(str(run_dir / XDS_SOCKET))
        self._admin = UnixSocket(str(run_dir / ADMIN_SOCKET))

    async def run(self) -> int:
        """Start everything, show it, and stay until cancelled or, with --once, answered."""
        self._logs.mkdir(exist_ok=True)
        if self._options.engine == "vllm":
            with self._progress.waiting("making a tiny model for vLLM"):
                self._nodes = await with_tiny_model(
                    self._nodes, self._vllm_python(), self._run_dir / "tiny-model"
                )
        failed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        async with contextlib.AsyncExitStack() as stack:
            registry = await stack.enter_async_context(self._registry())
            await stack.enter_async_context(companions([self._control_plane(registry)], failed))
            await stack.enter_async_context(companions([self._edge_envoy().run()], failed))
            agents = [self._agent(node, registry.registrar) for node in self._nodes]
            await stack.enter_async_context(companions(agents, failed))
            return await _first(self._show(), failed)

    async def _show(self) -> int:
        deadline_s = _DEADLINE_S[self._options.engine]
        wanted = {f"{node.node}.{engine.name}" for node in self._nodes for engine in node.engines}
        text = f"waiting for {len(wanted)} engines ({self._options.engine})"
        with self._progress.waiting(text):
            engines = await self._ready_engines(wanted, deadline_s)
        ready = [engine for engine in engines if engine["state"] == "ready"]
        self._progress.step(f"{len(ready)} of {len(wanted)} engines are ready")
        print_engines(engines)
        if not ready:
            self._progress.step(f"no engine became ready; its log is in {self._logs}")
            return FINDING
        model = ready[0]["model"]
        content = await first_answer(self._edge, model, deadline_s=_DEADLINE_S["simulated"])
        print_answer(model, content, self._progress.elapsed_s)
        print_addresses(self._edge, model, self._run_dir, Path(self._admin.path), self._nodes)
        sys.stdout.flush()
        if self._options.once:
            return OK if len(ready) == len(wanted) else FINDING
        self._progress.step("running; Ctrl-C stops everything")
        await asyncio.Event().wait()
        return OK

    async def _ready_engines(self, wanted: set[str], deadline_s: float) -> list[dict[str, Any]]:
        """Return the engines in force once all wanted ones are ready, or at the deadline."""
        engines: list[dict[str, Any]] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while wanted - {e["id"] for e in engines if e["state"] == "ready"}:
                    await asyncio.sleep(_POLL_S)
                    with contextlib.suppress(AdminError):
                        (plan,) = await ask_admin(self._admin, "/v1/plan")
                        engines = plan.get("engines", [])
        return engines

    @contextlib.asynccontextmanager
    async def _registry(self) -> AsyncIterator[_Registry]:
        async with contextlib.AsyncExitStack() as stack:
            address = self._options.consul_address
            binary = shutil.which("consul")
            if address:
                self._progress.step(f"registry: Consul at {address} (CONSUL_HTTP_ADDR)")
            elif binary:
                address = await stack.enter_async_context(dev_consul(binary, self._run_dir))
                self._progress.step(f"registry: {binary} agent -dev at {address}")
            else:
                self._progress.step("registry: embedded (no consul on PATH, no CONSUL_HTTP_ADDR)")
                embedded = EmbeddedRegistry()
                yield _Registry(registrar=embedded, catalog=embedded.watch())
                return
            client = await stack.enter_async_context(open_consul(address, None))
            yield _Registry(registrar=ConsulRegistrar(client), catalog=None, consul_address=address)

    async def _control_plane(self, registry: _Registry) -> None:
        config = ControlPlaneConfig(
            catalog="consul" if registry.catalog is None else "embedded",
            policy=self._options.policy,
            xds_addresses=(self._xds,),
            admin_address=self._admin,
            consul_address=registry.consul_address,
        )
        await run_control_plane(config, catalog=registry.catalog)

    async def _agent(self, node: NodeConfig, registrar: Registrar) -> None:
        envoy = envoy_command(
            role="node",
            node_id=node.node,
            xds_addresses=[self._xds],
            run_dir=self._run_dir,
            concurrency=_WORKERS,
        )
        await run_agent(
            node,
            registrar,
            log_dir=self._logs / node.node,
            vllm_python=self._vllm_python(),
            commands=[envoy],
        )

    def _edge_envoy(self) -> Supervised:
        command = envoy_command(
            role="edge",
            node_id="edge",
            xds_addresses=[self._xds],
            run_dir=self._run_dir,
            listen=self._edge,
            concurrency=_WORKERS,
        )
        return Supervised(command, log_dir=self._logs, stop_grace_s=_STOP_GRACE_S)

    def _vllm_python(self) -> str:
        return self._options.vllm_python or sys.executable


@contextlib.asynccontextmanager
async def companions(
    coroutines: Sequence[Coroutine[Any, Any, None]], failed: "asyncio.Future[int]"
) -> AsyncIterator[None]:
    """Run coroutines while the context is open; one that ends by itself fails `failed`."""

    def note_end(task: "asyncio.Task[None]") -> None:
        if not (task.cancelled() or failed.done()):
            failed.set_exception(task.exception() or WattmeshError("a part of the mesh ended"))

    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    for task in tasks:
        task.add_done_callback(note_end)
    try:
        yield
    finally:
        for task in tasks:
            task.remove_done_callback(note_end)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _first(shown: Coroutine[Any, Any, int], failed: "asyncio.Future[int]") -> int:
    """Return what comes first: the end of the show, or the failure of a part (raised)."""
    task = asyncio.create_task(shown)
    try:
        done, _ = await asyncio.wait({task, failed}, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        task.cancel()
        failed.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _edge_address(listen: str | None, progress: Progress) -> HostPort:
    """Return where the edge listens: as asked, else the default port, else a free one."""
    if listen is not None:
        address = parse_host_port(listen)
        if address.host == "localhost":
            address = HostPort("127.0.0.1", address.port)
        if fault := listen_fault(address):
            raise WattmeshError(f"--listen {listen}: {fault}; nothing is started")
        return address
    if is_free(_DEFAULT_LISTEN.host, _DEFAULT_LISTEN.port):
        return _DEFAULT_LISTEN
    (port,) = free_ports(1)
    progress.step(f"{_DEFAULT_LISTEN} is in use: the edge listens on port {port}")
    return HostPort(_DEFAULT_LISTEN.host, port)

"""A whole mesh of real programs: Consul, control plane, agents with their node Envoys, an edge.

All is started by the public command line, as an operator would, and listens on loopback or on Unix
sockets below one short temporary directory. Only the engines may be simulated.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from control_plane.identity import Pool
from tests.support import paths, unix_http
from tests.support.consul import ConsulServer
from tests.support.envoy import EnvoyAdmin
from tests.support.ports import free_ports
from tests.support.processes import Process, children, command_line, wait_until

MODEL = "tiny"


@dataclass(frozen=True, kw_only=True)
class EngineSetup:
    """One engine of the mesh; `extra` are further fields of its entry in node.yaml."""

    node: str
    name: str
    gpu_power: float
    launcher: str = "simulated"
    model: str = MODEL
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Its service ID in Consul."""
        return f"{self.node}.{self.name}"


class Mesh:
    """The programs of one mesh and what a test asks of them. A context manager."""

    def __init__(
        self,
        engines: Sequence[EngineSetup],
        *,
        policy: Mapping[str, Any] | None = None,
        ready_timeout_s: float = 60.0,
    ) -> None:
        consul = paths.consul()
        envoy = paths.envoy()
        if consul is None or envoy is None:
            raise RuntimeError("mark the test with envoy and consul")
        self.root = Path(tempfile.mkdtemp(prefix="wm-", dir="/tmp"))
        self.engines = tuple(engines)
        self._ready_timeout_s = ready_timeout_s
        self.nodes = tuple(dict.fromkeys(engine.node for engine in engines))
        self._envoy = envoy
        edge_port, *mesh_ports = free_ports(1 + len(self.nodes))
        self.edge_port = edge_port
        self.mesh_ports = dict(zip(self.nodes, mesh_ports, strict=True))
        self.consul = ConsulServer(consul, self.root)
        self.xds_address = f"unix:{self.root}/xds.sock"
        self.admin_socket = f"{self.root}/admin.sock"
        self.policy_file = self.root / "policy.yaml"
        self.write_policy(policy or {})
        self.control_plane: Process | None = None
        self.agents: dict[str, Process] = {}
        self.edge: Process | None = None
        self._kept = bool(os.environ.get("WATTMESH_TEST_KEEP"))

    @property
    def edge_url(self) -> str:
        return f"http://127.0.0.1:{self.edge_port}"

    @property
    def cluster(self) -> str:
        """The Envoy cluster of the first engine's pool."""
        return Pool(self.engines[0].model, self.engines[0].extra.get("version", "")).cluster

    # -- starting and stopping ------------------------------------------------------------------

    def start(self) -> None:
        """Start Consul, the control plane, the agents and the edge; return when all are started."""
        self.consul.start()
        self.start_control_plane()
        for node in self.nodes:
            self.start_agent(node)
        self.start_edge()

    def xds_options(self, _which: str) -> list[str]:
        """Return how an Envoy, "edge" or that of a node, finds its control plane."""
        return ["--xds-address", self.xds_address]

    def start_control_plane(self) -> None:
        argv = [
            *paths.wattmesh(),
            "control-plane",
            "--catalog",
            "consul",
            "--policy",
            str(self.policy_file),
        ]
        argv += ["--xds-address", self.xds_address, "--admin-address", f"unix:{self.admin_socket}"]
        argv += ["--consul-address", self.consul.address, "--log-format", "json"]
        self.control_plane = Process("control-plane", argv, log=self.root / "control-plane.log")

    def write_policy(self, policy: Mapping[str, Any]) -> None:
        """Put a policy in the place of the last one, as control planes follow it."""
        beside = self.policy_file.with_suffix(".new")
        beside.write_text(yaml.safe_dump(dict(policy)))
        beside.rename(self.policy_file)

    def start_agent(self, node: str) -> None:
        home = self.root / node
        home.mkdir(exist_ok=True)
        config = home / "node.yaml"
        config.write_text(yaml.safe_dump(self._node_document(node)))
        argv = [
            *paths.wattmesh(),
            "agent",
            "--node",
            str(config),
            "--consul-address",
            self.consul.address,
        ]
        argv += [*self.xds_options(node), "--run-dir", str(home)]
        python = paths.vllm_python()
        if python is not None:
            argv += ["--vllm-python", python]
        self.agents[node] = Process(f"agent {node}", argv, log=home / "agent.out")

    def _node_document(self, node: str) -> dict[str, Any]:
        return {
            "node": node,
            "address": "127.0.0.1",
            "mesh_port": self.mesh_ports[node],
            "socket_dir": str(self.root / node),
            "engines": [
                {
                    "name": engine.name,
                    "model": engine.model,
                    "launcher": engine.launcher,
                    "gpu_power": engine.gpu_power,
                    **engine.extra,
                }
                for engine in self.engines
                if engine.node == node
            ],
        }

    def start_edge(self) -> None:
        argv = [*paths.wattmesh(), "bootstrap", "--role", "edge", "--node-id", "edge-1"]
        argv += [*self.xds_options("edge"), "--listen", f"127.0.0.1:{self.edge_port}"]
        argv += ["--admin-socket", f"{self.root}/edge.sock"]
        bootstrap = self.root / "edge.yaml"
        bootstrap.write_bytes(subprocess.run(argv, check=True, capture_output=True).stdout)
        self.edge = Process(
            "edge Envoy",
            [
                self._envoy,
                "-c",
                str(bootstrap),
                "--disable-hot-restart",
                "--concurrency",
                "2",
                "-l",
                "warn",
            ],
            log=self.root / "edge.log",
        )

    def wait_until_ready(self) -> None:
        """Wait until every engine is in the plan and the edge has every node."""
        for what, condition in (
            ("every engine passes in Consul", self._registered),
            ("the edge has every node", lambda: len(self.edge_hosts()) == len(self.nodes)),
            ("every node has its engines", self._nodes_healthy),
            ("a chat request is answered", self._answered),
        ):
            wait_until(condition, what, timeout_s=self._ready_timeout_s, processes=self.processes)

    def _registered(self) -> bool:
        return self.consul.passing_engines() == {engine.id for engine in self.engines}

    def _nodes_healthy(self) -> bool:
        return all(self.healthy_engines(node) == self._named(node) for node in self.nodes)

    def _named(self, node: str) -> set[str]:
        """The engines of the first pool on a node."""
        return {
            engine.name
            for engine in self.engines
            if engine.node == node and engine.model == self.engines[0].model
        }

    def _answered(self) -> bool:
        return self.chat().status_code == 200

    @property
    def processes(self) -> list[Process]:
        """Everything that runs now, for reports."""
        parts = [self.control_plane, *self.agents.values(), self.edge]
        return [part for part in parts if part is not None]

    def stop(self) -> list[int]:
        """Stop everything; return the processes that outlived the agent that had started them."""
        if self.edge is not None:
            self.edge.stop()
        descendants = {
            pid: command_line(pid) for agent in self.agents.values() for pid in children(agent.pid)
        }
        for agent in self.agents.values():
            agent.send(signal.SIGTERM)
        for agent in self.agents.values():
            agent.stop(timeout_s=40)
        if self.control_plane is not None:
            self.control_plane.stop()
        self.consul.stop()
        survivors = [pid for pid, line in descendants.items() if line and command_line(pid) == line]
        for pid in survivors:
            os.kill(pid, signal.SIGKILL)
        return survivors

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_until_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if not self._kept:  # WATTMESH_TEST_KEEP=1 keeps logs and configuration to look at
            shutil.rmtree(self.root, ignore_errors=True)

    # -- asking ---------------------------------------------------------------------------------

    def chat(self, *, http2: bool = True, **fields: Any) -> httpx.Response:
        """Send one chat request through the edge."""
        with httpx.Client(http1=not http2, http2=http2, timeout=60) as client:
            return client.post(f"{self.edge_url}/v1/chat/completions", json=chat_body(**fields))

    def admin(self, path: str) -> unix_http.Answer:
        """GET from the control plane's admin API."""
        return unix_http.get(self.admin_socket, path)

    def control_plane_metrics(self) -> dict[str, float]:
        """Return the sum of each metric of the control plane, by sample name."""
        return _sums(self.admin("/metrics").text)

    def envoy(self, which: str) -> EnvoyAdmin:
        """Return the admin API of the edge ("edge") or of a node's Envoy (the node's name)."""
        return EnvoyAdmin(self._admin_socket(which))

    def _admin_socket(self, which: str) -> str:
        return (
            f"{self.root}/edge.sock"
            if which == "edge"
            else f"{self.root}/{which}/{which}.envoy.sock"
        )

    def edge_hosts(self) -> dict[str, int]:
        """Return the weight of each node in the edge's pool, by node name."""
        hosts = self.envoy("edge").hosts(self.cluster)
        names = {f"127.0.0.1:{port}": node for node, port in self.mesh_ports.items()}
        return {names[address]: host["weight"] for address, host in hosts.items()}

    def healthy_engines(self, node: str) -> set[str]:
        """Return the engines of the pool that a node's Envoy holds and found healthy."""
        return {
            Path(path).stem
            for path, host in self.envoy(node).hosts(self.cluster).items()
            if host["health_status"].get("eds_health_status") in ("HEALTHY", "UNKNOWN")
            and not host["health_status"].get("failed_active_health_check")
            and not host["health_status"].get("pending_active_hc")
        }

    def engine_metrics(self, engine: EngineSetup) -> dict[str, float]:
        """Return the sum of each metric of an engine, by sample name, over the mesh listener."""
        url = f"http://127.0.0.1:{self.mesh_ports[engine.node]}/wattmesh/engines/{engine.name}/metrics"
        return _sums(httpx.get(url, timeout=5).raise_for_status().text)

    def running_requests(self) -> float:
        """Return how many requests all engines run now."""
        return sum(self.engine_metrics(e)["vllm:num_requests_running"] for e in self.engines)

    def served(self) -> dict[str, float]:
        """Return how many requests each engine finished so far, by engine ID."""
        return {
            e.id: self.engine_metrics(e).get("vllm:request_success_total", 0.0)
            for e in self.engines
        }

    def engine_pids(self, engine: EngineSetup) -> list[int]:
        """Return an engine's processes, the one that holds its socket first."""
        socket = str(self.root / engine.node / f"{engine.name}.sock")
        family = children(self.agents[engine.node].pid)
        owners = [pid for pid in family if socket in command_line(pid)]
        return [pid for owner in owners for pid in (owner, *children(owner))]


def chat_body(
    *, model: str = MODEL, max_tokens: int = 4, stream: bool = False, **more: Any
) -> dict[str, Any]:
    """Return a chat request."""
    messages = [{"role": "user", "content": "Tell me about meshes."}]
    return {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "stream": stream,
        **more,
    }


def _sums(text: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums

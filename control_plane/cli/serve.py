"""The two long-running commands of production: the control plane and a host's agent."""

import sys
from dataclasses import dataclass
from pathlib import Path

import uvloop

from control_plane.addresses import HostPort, UnixSocket
from control_plane.catalog import parse_catalog
from control_plane.catalog_files import read_file
from control_plane.cli import OK
from control_plane.cli.envoys import envoy_command
from control_plane.cli.offline import load_policy
from control_plane.cli.runtime import run_until_signal
from control_plane.consul_catalog import open_consul
from control_plane.service import ControlPlaneConfig, run_control_plane
from engines.agent import run_agent
from engines.node_config import NodeConfig, parse_node
from engines.registrar import ConsulRegistrar
from observability.logs import configure_logs


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What `wattmesh agent` was asked for."""

    node: Path
    consul_address: str
    xds_address: UnixSocket | HostPort | None
    run_dir: Path
    vllm_python: str | None


def serve_control_plane(config: ControlPlaneConfig, *, level: str, as_json: bool) -> int:
    """Run a control plane until a signal. Files that are bad at the start are refused at once."""
    configure_logs(level, as_json=as_json)
    load_policy(config.policy)
    if config.catalog != "consul":
        source = config.catalog
        read_file(Path(source), lambda data: parse_catalog(data, source=source))

    async def run() -> int:
        await run_control_plane(config)
        return OK

    return run_until_signal(run(), loop_factory=uvloop.new_event_loop)


def serve_agent(options: AgentOptions, *, level: str, as_json: bool) -> int:
    """Run a host's engines until a signal."""
    configure_logs(level, as_json=as_json)
    config = load_node(options.node)
    options.run_dir.mkdir(parents=True, exist_ok=True)
    commands = []
    if options.xds_address is not None:
        commands.append(
            envoy_command(
                role="node",
                node_id=config.node,
                xds_address=options.xds_address,
                run_dir=options.run_dir,
            )
        )

    async def run() -> int:
        async with open_consul(options.consul_address, None) as client:
            await run_agent(
                config,
                ConsulRegistrar(client),
                log_dir=options.run_dir / "logs",
                vllm_python=options.vllm_python or sys.executable,
                commands=commands,
            )
        return OK

    return run_until_signal(run())


def load_node(path: Path) -> NodeConfig:
    """Return the host of a file. Raise InputError with every problem of it."""
    return read_file(path, lambda data: parse_node(data, source=str(path)))

"""`wattmesh agent`: one GPU host's engines, and on request its Envoy, until a signal."""

import sys
from dataclasses import dataclass
from pathlib import Path

from control_plane.addresses import HostPort, UnixSocket
from control_plane.catalog_files import read_file
from control_plane.cli import OK
from control_plane.cli.bootstrap_tls import prepare_tls
from control_plane.cli.envoys import admin_socket_path, envoy_command, lkg_command
from control_plane.cli.offline import NOTHING_STARTED
from control_plane.cli.runtime import run_until_signal
from control_plane.consul_catalog import open_consul
from control_plane.errors import InputError, Problem, shown
from engines.agent import run_agent
from engines.launcher import Command
from engines.node_config import NodeConfig, parse_node
from engines.registrar import ConsulRegistrar
from engines.sockets import group_fault, release_socket
from observability.logs import configure_logs


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What `wattmesh agent` was asked for."""

    node: Path
    consul_address: str
    xds_addresses: tuple[UnixSocket | HostPort, ...]  # none = the node Envoy is somebody else's
    lkg: Path | None  # of the node Envoy's last-known-good cache; None = it has none
    run_dir: Path
    tls_dir: Path | None  # the node Envoy's certificate
    vllm_python: str | None  # None = the Python that runs us


def serve_agent(options: AgentOptions, *, level: str, as_json: bool) -> int:
    """Run a host's agent and return its exit status. Raise InputError for a bad node file."""
    configure_logs(level, as_json=as_json)
    config = load_node(options.node)
    _check_group(config, options.node)
    options.run_dir.mkdir(parents=True, exist_ok=True)
    commands = _commands(config, options)

    async def run() -> int:
        try:
            async with open_consul(options.consul_address, None) as client:
                await run_agent(
                    config,
                    ConsulRegistrar(client),
                    log_dir=options.run_dir / "logs",
                    vllm_python=options.vllm_python or sys.executable,
                    commands=commands,
                )
        finally:  # Envoy leaves its admin socket behind
            release_socket(str(admin_socket_path(options.run_dir, config.node)))
        return OK

    return run_until_signal(run())


def load_node(path: Path) -> NodeConfig:
    """Return the host of a file. Raise InputError with every problem of it."""
    source = str(path)
    return read_file(path, lambda data: parse_node(data, source=source), meanwhile=NOTHING_STARTED)


def _check_group(config: NodeConfig, source: Path) -> None:
    """Raise InputError when the sockets' group is none of this host."""
    fault = group_fault(config.socket_group) if config.socket_group else None
    if fault:
        raise InputError(
            [
                Problem(
                    source=str(source),
                    path="socket_group",
                    value=shown(config.socket_group),
                    expected=fault,
                    meanwhile=NOTHING_STARTED,
                )
            ]
        )


def _commands(config: NodeConfig, options: AgentOptions) -> list[Command]:
    if not options.xds_addresses:
        return []
    tls = (
        prepare_tls(options.tls_dir, role="node", node_id=config.node) if options.tls_dir else None
    )
    envoy = envoy_command(
        role="node",
        node_id=config.node,
        mesh=tls,
        xds_addresses=options.xds_addresses,
        lkg=None if options.lkg is None else str(options.lkg),
        run_dir=options.run_dir,
    )
    if options.lkg is None:
        return [envoy]
    return [envoy, lkg_command(node_id=config.node, directory=options.lkg, run_dir=options.run_dir)]

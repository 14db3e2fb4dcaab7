"""A Consul of our own for `wattmesh up`: `consul agent -dev` on free loopback ports.

Everything that is not HTTP, gossip or Raft is switched off, so that it never meets another Consul.
"""

import asyncio
import contextlib
import os
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from control_plane.cli.ports import free_ports
from control_plane.errors import WattmeshError
from engines.agent import background
from engines.launcher import Command
from engines.supervisor import Supervised

_READY_DEADLINE_S = 20.0
_POLL_S = 0.1


def consul_argv(
    binary: str, version: tuple[int, int], ports: list[int], pid_file: Path
) -> tuple[str, ...]:
    """Return the command line; ports are those of HTTP, server RPC, LAN and WAN gossip."""
    http, server, lan, wan = ports
    argv = [
        *(binary, "agent", "-dev"),
        *("-node", "wattmesh-up", "-pid-file", str(pid_file)),
        *("-bind", "127.0.0.1", "-client", "127.0.0.1"),
        *("-http-port", str(http), "-server-port", str(server)),
        *("-serf-lan-port", str(lan), "-serf-wan-port", str(wan)),
        *("-dns-port", "-1", "-grpc-port", "-1"),
        *("-log-level", "warn"),
    ]
    if version >= (1, 14):
        argv += ["-grpc-tls-port", "-1"]
    return tuple(argv)


def parse_version(text: str) -> tuple[int, int]:
    """Return (major, minor) of what `consul version` prints. Raise WattmeshError if it is not."""
    match = re.search(r"Consul v?(\d+)\.(\d+)", text)
    if match is None:
        raise WattmeshError(f"`consul version` printed {text[:80]!r}, expected a version")
    return int(match[1]), int(match[2])


@contextlib.asynccontextmanager
async def dev_consul(binary: str, run_dir: Path) -> AsyncIterator[str]:
    """Run a Consul while the context is open; the value is its HTTP address."""
    log_dir = run_dir / "logs"
    shown = await asyncio.to_thread(
        subprocess.run, [binary, "version"], capture_output=True, text=True, check=False, timeout=20
    )
    ports = free_ports(4)
    command = Command(
        name="consul",
        argv=consul_argv(binary, parse_version(shown.stdout), ports, run_dir / "consul.pid"),
        env=dict(os.environ),
    )
    address = f"http://127.0.0.1:{ports[0]}"
    async with background([Supervised(command, log_dir=log_dir, stop_grace_s=5.0).run()]):
        await _wait_for_leader(address, log_dir / "consul.log")
        yield address


async def _wait_for_leader(address: str, log: Path) -> None:
    async with aiohttp.ClientSession() as session:
        try:
            async with asyncio.timeout(_READY_DEADLINE_S):
                while not await _has_leader(session, address):  # noqa: ASYNC110 it tells nobody
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise WattmeshError(
                f"Consul did not start within {_READY_DEADLINE_S:g} s; see {log}"
            ) from None


async def _has_leader(session: aiohttp.ClientSession, address: str) -> bool:
    try:
        async with session.get(f"{address}/v1/status/leader") as response:
            return response.status == 200 and len(await response.text()) > len('""')
    except aiohttp.ClientError:
        return False

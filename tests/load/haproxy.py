"""HAProxy in the edge's place: weighted leastconn over the same node Envoys.

It knows no model: the pool's header is set for every request. Weights go up to 256.
"""

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from control_plane.resources.edge_routes import POOL_HEADER
from tests.support.eventually import eventually

_MAX_WEIGHT = 256


def haproxy_binary() -> str | None:
    """Return the path of HAProxy, or None where it is not installed."""
    return shutil.which("haproxy")


def haproxy_config(port: int, nodes: Sequence[int], speeds: Sequence[float], cluster: str) -> str:
    """Return the configuration of one frontend over these node ports."""
    largest = max(speeds)
    servers = "\n".join(
        f"    server n{index} 127.0.0.1:{node} weight {round(_MAX_WEIGHT * speed / largest)}"
        for index, (node, speed) in enumerate(zip(nodes, speeds, strict=True))
    )
    return f"""
global
    maxconn 8000
    nbthread 1
defaults
    mode http
    timeout connect 2s
    timeout client 120s
    timeout server 120s
    timeout http-keep-alive 120s
    http-reuse always
frontend callers
    bind 127.0.0.1:{port}
    http-request set-header {POOL_HEADER} {cluster}
    default_backend nodes
backend nodes
    balance leastconn
{servers}
"""


@contextlib.asynccontextmanager
async def running_haproxy(
    root: Path, port: int, nodes: Sequence[int], speeds: Sequence[float], cluster: str
) -> AsyncIterator[None]:
    """Run HAProxy until the context is left."""
    binary = haproxy_binary()
    if binary is None:
        raise FileNotFoundError("haproxy is not installed")
    path = root / "haproxy.cfg"
    path.write_text(haproxy_config(port, nodes, speeds, cluster))
    process = await asyncio.create_subprocess_exec(binary, "-db", "-f", str(path))
    try:
        await eventually(lambda: _is_listening(port), within_s=10)
        yield
    finally:
        process.terminate()
        await process.wait()


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

"""The xDS server under a thousand streams: how long a change takes to the last ACK, and its cost.

The server runs in a process of its own, the clients in this one. Clients behave like our Envoys:
delta ADS, every type, an ACK for every response, and what they hold is told on a reconnect.

    S1  1,000 streams, 1,000 engines: one engine's weight changes
    S2  1,000 streams, 10,000 engines on 1,250 nodes: the same
    S3  all streams of S1 reconnect at once, holding everything
    S4  1 % of S1's engines change each second
    S5  streams open, are answered and are cancelled, again and again, at the connect-rate limit

    python -m tests.load.bench_xds [--streams 1000] [--changes 30] [--churn 30] [--only S1]
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2

from control_plane.snapshot import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    ROUTE,
    RUNTIME,
)

NAMES = {CLUSTER: "*", ENDPOINT: "*", LISTENER: "*", ROUTE: "*", RUNTIME: "wattmesh"}
EDGE_ONLY = {EXTENSION: "request-limits"}
FLEETS = {"S1": (125, 8, 20), "S2": (1250, 8, 40)}  # nodes, engines a node, models


@dataclass(slots=True)
class Totals:
    """What all clients saw together."""

    responses: int = 0
    resources: int = 0
    bytes: int = 0
    last_ack_s: float = 0.0


@dataclass(slots=True)
class Client:
    """One stream, like an Envoy's."""

    node: str
    role: str
    totals: Totals
    held: dict[str, dict[str, str]] = field(default_factory=dict)
    call: Any = None
    responses: int = 0

    async def run(self, stub: Any) -> None:
        """Connect, subscribe to everything and acknowledge, until cancelled."""
        self.call = stub.DeltaAggregatedResources()
        wanted = NAMES | (EDGE_ONLY if self.role == "edge" else {})
        for index, (type_url, name) in enumerate(wanted.items()):
            request = discovery_pb2.DeltaDiscoveryRequest(
                type_url=type_url,
                resource_names_subscribe=[name],
                initial_resource_versions=self.held.get(type_url, {}),
            )
            if index == 0:
                request.node.id = self.node
                metadata = {"role": self.role}
                if self.role == "edge":
                    metadata |= {"listen_address": "0.0.0.0", "listen_port": 10000}
                request.node.metadata.update(metadata)
            await self.call.write(request)
        while True:
            response = await self.call.read()
            if response is grpc.aio.EOF:
                raise ConnectionError(await self.call.details())
            await self._take(response)

    async def _take(self, response: Any) -> None:
        held = self.held.setdefault(response.type_url, {})
        for item in response.resources:
            held[item.name] = item.version
        for name in response.removed_resources:
            held.pop(name, None)
        ack = discovery_pb2.DeltaDiscoveryRequest(
            type_url=response.type_url, response_nonce=response.nonce
        )
        await self.call.write(ack)
        self.responses += 1
        self.totals.responses += 1
        self.totals.resources += len(response.resources)
        self.totals.bytes += response.ByteSize()
        self.totals.last_ack_s = time.monotonic()


class Server:
    """The server's process and its answers to commands."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, command: str) -> float:
        """Return the number that answers a command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n".encode())
        return float(await self._process.stdout.readline())


@contextlib.asynccontextmanager
async def running_server(fleet: str, root: str) -> AsyncIterator[tuple[Server, str]]:
    """Run a server over one of the fleets; yield it with its socket."""
    nodes, engines, models = FLEETS[fleet]
    socket = f"{root}/{fleet}.sock"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.load.xds_server", "--socket", socket),
        *("--nodes", str(nodes), "--engines", str(engines), "--models", str(models)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Server(process), socket
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


class Crowd:
    """All clients of a run."""

    def __init__(self, socket: str, streams: int, nodes: int) -> None:
        """`nodes` of the streams are nodes', the others edges'."""
        self.totals = Totals()
        self._socket = socket
        self.clients = [
            Client(
                f"n{i}" if i < nodes else f"edge-{i}", "node" if i < nodes else "edge", self.totals
            )
            for i in range(streams)
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._channels: list[Any] = []

    @property
    def edges(self) -> int:
        """How many of the clients are edges."""
        return sum(client.role == "edge" for client in self.clients)

    async def connect(self) -> None:
        """Connect every client; a channel carries a hundred streams, as HTTP/2 likes them."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        for start in range(0, len(self.clients), 100):
            channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=options)
            self._channels.append(channel)
            stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel)
            for client in self.clients[start : start + 100]:
                self._tasks.append(asyncio.create_task(client.run(stub)))

    async def disconnect(self) -> None:
        """End every stream."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for channel in self._channels:
            await channel.close()
        self._tasks, self._channels = [], []

    async def quiet(self, for_s: float = 1.0) -> None:
        """Return once nothing has come for a while. Raise what ended a stream."""
        while True:
            before = self.totals.responses
            await asyncio.sleep(for_s)
            for task in self._tasks:
                if task.done():
                    task.result()
            if self.totals.responses == before and before:
                return

    async def until(self, responses: int, within_s: float) -> bool:
        """Wait until so many responses came; return whether they did in time."""
        deadline = time.monotonic() + within_s
        while self.totals.responses < responses:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.002)
        return True


async def changes(server: Server, crowd: Crowd, count: int) -> dict[str, float]:
    """Change one engine at a time; return the times to the last ACK and the cost of a change."""
    took, before = [], Totals(crowd.totals.responses, crowd.totals.resources, crowd.totals.bytes)
    cpu_s = await server.ask("cpu")
    for _ in range(count):
        # Every edge hears of it, and the node of the engine; the first node is among the clients.
        expected = crowd.totals.responses + crowd.edges
        began = await server.ask("change 1")
        assert await crowd.until(expected, 30), "a change did not reach every stream"
        await asyncio.sleep(0.3)
        took.append(crowd.totals.last_ack_s - began)
    used_s = await server.ask("cpu") - cpu_s
    return {
        "p50_s": statistics.median(took),
        "p99_s": sorted(took)[int(len(took) * 0.99)],
        "responses_per_change": (crowd.totals.responses - before.responses) / count,
        "resources_per_response": (crowd.totals.resources - before.resources)
        / (crowd.totals.responses - before.responses),
        "bytes_per_change": (crowd.totals.bytes - before.bytes) / count,
        "server_cpu_s_per_change": used_s / count,
    }


async def storm(server: Server, crowd: Crowd) -> dict[str, float]:
    """Reconnect every stream at once, holding everything; then change one engine.

    Silence is the right answer, so that being in sync shows in the change that follows.
    """
    await crowd.disconnect()
    while await server.ask("streams"):  # noqa: ASYNC110 another process's
        await asyncio.sleep(0.05)
    sent, began = crowd.totals.resources, time.monotonic()
    await crowd.connect()
    while await server.ask("streams") < len(crowd.clients):  # noqa: ASYNC110 another process's
        await asyncio.sleep(0.02)
    connected_s = time.monotonic() - began
    again = crowd.totals.resources - sent
    expected = crowd.totals.responses + crowd.edges
    await server.ask("change 1")
    assert await crowd.until(expected, 30), "a change did not reach every stream"
    return {
        "all_connected_s": connected_s,
        "all_told_of_a_change_s": crowd.totals.last_ack_s - began,
        "resources_sent_again": again,
    }


async def churn(server: Server, crowd: Crowd, seconds: int, engines: int) -> dict[str, float]:
    """Change 1 % of the engines each second, after a while of it that fills what is kept."""
    for _ in range(10):
        await server.ask(f"change {max(1, engines // 100)}")
        await asyncio.sleep(1.0)
    rss, before = await server.ask("rss"), crowd.totals.responses
    cpu_s = await server.ask("cpu")
    for _ in range(seconds):
        await server.ask(f"change {max(1, engines // 100)}")
        await asyncio.sleep(1.0)
    await crowd.quiet()
    pushes = (crowd.totals.responses - before) / len(crowd.clients)
    return {
        "seconds": seconds,
        "pushes_per_stream_and_second": pushes / seconds,
        "server_cpu_share": (await server.ask("cpu") - cpu_s) / seconds,
        "rss_growth": await server.ask("rss") / rss - 1,
    }


async def cycles(server: Server, socket: str, count: int) -> dict[str, float]:
    """Open and cancel streams, fifty at a time; memory counts after the first tenth."""
    channel = grpc.aio.insecure_channel(f"unix:{socket}")
    stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel)
    request = discovery_pb2.DeltaDiscoveryRequest(type_url=CLUSTER)
    request.node.id = "edge-0"
    request.node.metadata.update(
        {"role": "edge", "listen_address": "0.0.0.0", "listen_port": 10000}
    )

    async def cycle() -> None:
        call = stub.DeltaAggregatedResources()
        await call.write(request)
        await call.read()
        call.cancel()

    async def many(number: int) -> None:
        for _ in range(number // 50):
            await asyncio.gather(*(cycle() for _ in range(50)))
        while await server.ask("streams"):  # noqa: ASYNC110 another process's
            await asyncio.sleep(0.05)

    await many(count // 10)
    rss = await server.ask("rss")
    await many(count - count // 10)
    growth = await server.ask("rss") / rss - 1
    await channel.close()
    return {"cycles": count, "rss_growth": growth}


async def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Run the scenarios asked for."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="wm-", dir="/tmp") as root:
        for fleet, (nodes, engines, _) in FLEETS.items():
            if options.only not in (None, fleet):
                continue
            async with running_server(fleet, root) as (server, socket):
                crowd = Crowd(socket, options.streams, min(nodes, options.streams // 2))
                while not Path(socket).exists():  # noqa: ASYNC110, ASYNC240 another process's file
                    await asyncio.sleep(0.1)
                await asyncio.sleep(3.0)  # the first plan
                began = time.monotonic()
                await crowd.connect()
                await crowd.quiet()
                first_s = crowd.totals.last_ack_s - began
                found[fleet] = {
                    "first_sync_s": first_s,
                    **await changes(server, crowd, options.changes),
                    "server_rss_mb": await server.ask("rss") / 1e6,
                }
                if fleet == "S1":
                    found["S3"] = await storm(server, crowd)
                    found["S4"] = await churn(server, crowd, options.churn, nodes * engines)
                await crowd.disconnect()
                if fleet == "S1":
                    found["S5"] = await cycles(server, socket, options.cycles)
    return found


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure the xDS server under many streams.")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--changes", type=int, default=30)
    parser.add_argument("--churn", type=int, default=30, help="seconds of S4")
    parser.add_argument("--cycles", type=int, default=20_000, help="of S5")
    parser.add_argument("--only", choices=["S1", "S2"], help="S1 (with S3 and S4), or S2")
    parser.add_argument("--results", type=Path, default=Path("bench-results"), metavar="DIR")
    options = parser.parse_args()
    found = asyncio.run(measure(options))
    for name, figures in found.items():
        print(name)  # noqa: T201
        for key, value in figures.items():
            print(f"  {key:32}{value:14.3f}")  # noqa: T201
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "xds.json").write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

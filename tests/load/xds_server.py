"""A control plane over a made-up fleet, driven by commands on standard input, for bench_xds.

change N    change the power of N engines; prints the time just before the answer is parsed
rss         prints the process's resident set in bytes
streams     prints how many streams are open and have said who they are
cpu         prints the process's CPU seconds
"""

import argparse
import asyncio
import json
import resource
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import structlog

from control_plane.addresses import UnixSocket
from control_plane.catalog import CatalogParser
from control_plane.guard import CatalogRead
from control_plane.metrics import Metrics
from control_plane.service import ControlPlaneConfig, run_control_plane
from tests.load.bench_plan import entries


class Fleet:
    """Consul's answer, entry by entry; a change costs what reading it from Consul would."""

    def __init__(self, nodes: int, engines: int, models: int) -> None:
        self._entries: list[dict[str, Any]] = entries(nodes, engines, models)
        self._texts = [json.dumps(entry) for entry in self._entries]
        self._parser = CatalogParser("bench")
        self._changed = asyncio.Event()
        self._next = 0
        self._reads = 0

    def change(self, count: int) -> None:
        """Change engines, the next ones in turn, the first node's first."""
        for _ in range(count):
            index = self._next % len(self._entries)
            self._next += 1
            self._entries[index]["Service"]["Meta"]["gpu_power"] = str(50 + self._next % 97)
            self._texts[index] = json.dumps(self._entries[index])
        print(time.monotonic(), flush=True)  # noqa: T201 the answer to the command
        self._changed.set()

    async def watch(self) -> AsyncIterator[CatalogRead]:
        """Yield the catalog now and after every change."""
        while True:
            self._changed.clear()
            self._reads += 1
            catalog = self._parser.parse(f"[{','.join(self._texts)}]".encode())
            yield CatalogRead(catalog=catalog, index=self._reads)
            await self._changed.wait()


async def obey(fleet: Fleet, metrics: Metrics) -> None:
    """Take commands until standard input ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command, *arguments = line.decode().split()
        if command == "change":
            fleet.change(int(arguments[0]))
        elif command == "rss":
            pages = int(Path("/proc/self/statm").read_text().split()[1])  # noqa: ASYNC240 no disk
            print(pages * resource.getpagesize(), flush=True)  # noqa: T201
        elif command == "streams":
            values = [sample.value for sample in metrics.xds_streams.collect()[0].samples]
            print(sum(values), flush=True)  # noqa: T201
        elif command == "cpu":
            print(time.process_time(), flush=True)  # noqa: T201


async def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser()
    for name in ("nodes", "engines", "models"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--socket", required=True)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    fleet = Fleet(options.nodes, options.engines, options.models)
    policy = Path(f"{options.socket}.policy")
    # Nothing is there to measure.
    policy.write_text("defaults: {correction: {enabled: false}}")  # noqa: ASYNC240 once, at start
    config = ControlPlaneConfig(
        catalog="bench",
        policy=policy,
        xds_addresses=(UnixSocket(options.socket),),
        admin_address=UnixSocket(f"{options.socket}.admin"),
    )
    metrics = Metrics()
    running = run_control_plane(config, catalog=fleet.watch(), metrics=metrics)
    serving = asyncio.create_task(running)
    await obey(fleet, metrics)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())

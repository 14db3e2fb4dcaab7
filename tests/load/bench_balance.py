"""Four unequal engines behind real Envoys: our balance against others, on the same arrivals.

Engines of speed 1:2:4:8 (simulated) on a node each, a node Envoy each, one edge: our Envoy under
several balancers in turn, or HAProxy in its place. Open-loop Poisson arrivals at 60, 80 and 90 % of
total capacity; every balancer gets the same trace, and balancers take turns within a round.
Figures are ratios to Envoy's weighted LEAST_REQUEST (weight = capacity, bias 1) of the same run:
absolute times depend on the machine. A computed yardstick that knows every length stands beside.

    python -m tests.load.bench_balance [--seconds 15] [--rounds 2] [--slots equal|proportional]
"""

import argparse
import asyncio
import contextlib
import json
import math
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from control_plane.errors import Problem
from control_plane.identity import Pool
from control_plane.plan import Plan
from control_plane.resources import Resources, View, build_resources
from control_plane.snapshot import Snapshot, make_snapshot
from control_plane.weights import ACTIVE_REQUEST_BIASES, EXPONENTS
from engines.sockets import is_listening
from tests.load.balance_report import REFERENCE, YARDSTICK, draw, table
from tests.load.haproxy import haproxy_binary, running_haproxy
from tests.load.queueing import (
    Engine,
    Request,
    poisson_trace,
    shortest_expected_delay,
    simulate,
)
from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry
from tests.support.envoy_lab import Lab, chat, running_lab
from tests.support.eventually import eventually
from tests.support.ports import free_ports

SPEEDS = (1, 2, 4, 8)
SLOTS = {"equal": (16, 16, 16, 16), "proportional": (4, 8, 16, 32)}
LOADS = (0.6, 0.8, 0.9)
MEAN_TOKENS = 15
STEP_S = 0.040  # of one token on the slowest engine
MODEL = "acme/fox"
HAPROXY = "HAProxy leastconn, weight = capacity"
_GIVE_UP_S = 60.0  # after the last arrival; what is not answered by then counts as unfinished
_POLICY = "defaults: {max_queue: 1000, correction: {enabled: false}}"  # nothing is refused


@dataclass(frozen=True, slots=True)
class Balancer:
    """How Envoy is told to balance: weight = capacity ** exponent, and its bias."""

    exponent: float
    bias: float
    lb_policy: str = "LEAST_REQUEST"


OURS = Balancer(EXPONENTS["latency"], ACTIVE_REQUEST_BIASES["latency"])
BALANCERS: Mapping[str, Balancer] = {
    "wattmesh, balance: latency": OURS,
    "wattmesh, balance: proportional": Balancer(
        EXPONENTS["proportional"], ACTIVE_REQUEST_BIASES["proportional"]
    ),
    REFERENCE: Balancer(1, 1),
    "ROUND_ROBIN, weight = capacity": Balancer(1, 0, "ROUND_ROBIN"),
    "LEAST_REQUEST, unweighted": Balancer(0, 1),
    "ROUND_ROBIN, unweighted": Balancer(0, 0, "ROUND_ROBIN"),
}


class Rendering:
    """Renders plans with the balancer of the moment in place of the plan's own."""

    def __init__(self) -> None:
        self.balancer = OURS

    def __call__(self, plan: Plan, view: View) -> Snapshot:
        resources = build_resources(plan, view)
        if view.role == "edge":
            self._rewrite(resources)
        return make_snapshot(resources)

    def _rewrite(self, resources: Resources) -> None:
        (cluster,) = resources.clusters
        cluster.lb_policy = cluster.LbPolicy.Value(self.balancer.lb_policy)
        cluster.ClearField("least_request_lb_config")
        if self.balancer.lb_policy == "LEAST_REQUEST":
            bias = cluster.least_request_lb_config.active_request_bias
            bias.default_value, bias.runtime_key = self.balancer.bias, "bench.bias"
        hosts = next(a for a in resources.endpoints if a.cluster_name == cluster.name)
        for host, speed in zip(hosts.endpoints[0].lb_endpoints, SPEEDS, strict=True):
            host.load_balancing_weight.value = round((10 * speed) ** self.balancer.exponent)


def fleet(slots: Sequence[int]) -> list[Engine]:
    """Return the engines as the queueing model has them: a batch of 64 doubles a step's time."""
    return [
        Engine(speed / STEP_S, held, 1 + (held - 1) / 64)
        for speed, held in zip(SPEEDS, slots, strict=True)
    ]


def trace_of(load: float, seconds: float, slots: Sequence[int], seed: int) -> list[Request]:
    """Return arrivals at this share of the fleet's capacity."""
    rate = load * sum(engine.capacity for engine in fleet(slots)) / MEAN_TOKENS
    return poisson_trace(
        rate_per_s=rate, count=int(rate * seconds), mean_tokens=MEAN_TOKENS, seed=seed
    )


@dataclass(frozen=True, slots=True)
class Bench:
    """What runs: the lab, its plan, how it is rendered, and where each kind of edge listens."""

    lab: Lab
    plan: Plan
    rendering: Rendering
    haproxy_url: str | None
    slots: Sequence[int]

    async def prepare(self, name: str) -> str:
        """Make a balancer the one in force; return the URL that it balances."""
        if name == HAPROXY:
            return str(self.haproxy_url)
        self.rendering.balancer = BALANCERS[name]
        await self.lab.publish(marked(self.plan, name))
        await asyncio.sleep(1.0)
        return self.lab.url

    @property
    def names(self) -> list[str]:
        """The balancers in turn."""
        return [*BALANCERS, *([HAPROXY] if self.haproxy_url else [])]


@contextlib.asynccontextmanager
async def running_bench(root: Path, slots: Sequence[int]) -> AsyncIterator[Bench]:
    """Run the engines, their node Envoys and the edges."""
    rendering = Rendering()
    haproxy_port, *ports = free_ports(1 + len(SPEEDS))
    async with running_lab(root, rendering) as lab, contextlib.AsyncExitStack() as stack:
        for index, (speed, held) in enumerate(zip(SPEEDS, slots, strict=True)):
            await stack.enter_async_context(simulator(lab.socket(f"e{index}"), speed, held))
        plan = make_plan(
            *(
                consul_entry(
                    f"n{index}.e{index}",
                    port=port,
                    gpu_power=str(100 * speed),
                    max_num_seqs=str(held),
                    socket=lab.socket(f"e{index}"),
                )
                for index, (speed, held, port) in enumerate(zip(SPEEDS, slots, ports, strict=True))
            ),
            policy=_POLICY,
        )
        lab.store.publish(plan)
        for index in range(len(SPEEDS)):
            await stack.enter_async_context(lab.envoy("node", f"n{index}"))
        await stack.enter_async_context(lab.envoy("edge", "edge-1"))
        url = None
        if haproxy_binary() is not None:
            cluster = Pool(MODEL).cluster
            await stack.enter_async_context(
                running_haproxy(root, haproxy_port, ports, SPEEDS, cluster)
            )
            url = f"http://127.0.0.1:{haproxy_port}"
        yield Bench(lab, plan, rendering, url, slots)


@contextlib.asynccontextmanager
async def simulator(socket: str, speed: float, slots: int) -> AsyncIterator[None]:
    """Run a simulated engine whose single-sequence step is STEP_S / speed."""
    reference_step_s = 16e9 / 2039e9  # of the simulator at gpu_power 100
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engines.simulator", "--uds", socket),
        *("--served-model-name", MODEL, "--max-num-seqs", str(slots)),
        *("--gpu-power", "100", "--speedup", str(reference_step_s * speed / STEP_S)),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await eventually(lambda: is_listening(socket), within_s=20)
        yield
    finally:
        process.kill()
        await process.wait()


async def run_trace(url: str, trace: Sequence[Request]) -> list[float]:
    """Send a trace by the clock, whatever became of earlier requests.

    Return the times in seconds; infinity for what was not answered with 200 in time.
    """
    ends_s = trace[-1].at_s + _GIVE_UP_S
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:
        started = time.monotonic()

        async def send(request: Request) -> float:
            await asyncio.sleep(max(0.0, started + request.at_s - time.monotonic()))
            body = chat(max_tokens=round(request.tokens), messages=[{"role": "user"}])
            headers = {"content-type": "application/json"}
            began = time.monotonic()
            left_s = started + ends_s - began
            try:
                async with (
                    asyncio.timeout(left_s),
                    session.post("/v1/chat/completions", data=body, headers=headers) as response,
                ):
                    await response.read()
                    answered = response.status == 200
            except (aiohttp.ClientError, TimeoutError):
                answered = False
            return time.monotonic() - began if answered else math.inf

        return list(await asyncio.gather(*(send(request) for request in trace)))


def marked(plan: Plan, name: str) -> Plan:
    """Return a plan that differs in nothing that is pushed: an equal one is not rendered again."""
    mark = Problem(source="bench", path=name, value="", expected="", meanwhile="")
    return replace(plan, problems=(mark,))


def figures(times: Sequence[float], slo_s: float) -> dict[str, float]:
    """Return mean, p50, p99 in seconds, goodput (share within the SLO) and what never ended.

    The first tenth warms up. The mean is of what ended.
    """
    warm = sorted(times[len(times) // 10 :])
    ended = [value for value in warm if math.isfinite(value)]
    return {
        "mean_s": statistics.fmean(ended),
        "p50_s": warm[len(warm) // 2],
        "p99_s": warm[int(len(warm) * 0.99)],
        "goodput": sum(1 for value in warm if value <= slo_s) / len(warm),
        "unfinished": 1 - len(ended) / len(warm),
    }


Found = dict[str, dict[str, list[dict[str, float]]]]  # by load and balancer, an entry a round


async def measure(
    seconds: float,
    rounds: int,
    loads: Sequence[float],
    kind: str,
    only: Sequence[str] | None = None,
) -> Found:
    """Return the figures of all balancers, or of some and the reference; they take turns."""
    slots = SLOTS[kind]
    slo_s = 2 * MEAN_TOKENS * STEP_S * len(SPEEDS) / sum(SPEEDS)  # 2 x the unloaded mean
    found: Found = {}
    root = Path(tempfile.mkdtemp(prefix="wm-", dir="/tmp"))
    try:
        async with running_bench(root, slots) as bench:
            for turn in range(rounds):
                for load in loads:
                    trace = trace_of(load, seconds, slots, seed=turn)
                    row = found.setdefault(f"{load:.0%}", {})
                    computed = simulate(fleet(slots), trace, shortest_expected_delay)
                    row.setdefault(YARDSTICK, []).append(figures(computed, slo_s))
                    for name in bench.names:
                        if only and name not in (REFERENCE, *only):
                            continue
                        times = await run_trace(await bench.prepare(name), trace)
                        row.setdefault(name, []).append(figures(times, slo_s))
                        print(f"round {turn + 1}, {load:.0%}: {name}", file=sys.stderr)  # noqa: T201
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return found


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description="Measure balancers over four unequal engines behind real Envoys.",
        epilog="Example: python -m tests.load.bench_balance --seconds 30 --rounds 3",
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="of each trace")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS))
    parser.add_argument("--slots", choices=list(SLOTS), default="equal", help="of the engines")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="of the balancers, as printed")
    parser.add_argument("--results", type=Path, default=Path("bench-results"), metavar="DIR")
    options = parser.parse_args()
    if haproxy_binary() is None:
        print(f"NOT MEASURED: {HAPROXY}: haproxy is not on PATH", file=sys.stderr)  # noqa: T201
    found = asyncio.run(
        measure(options.seconds, options.rounds, options.loads, options.slots, options.only)
    )
    print(table(found))  # noqa: T201
    options.results.mkdir(parents=True, exist_ok=True)
    written = options.results / f"balance-{options.slots}.json"
    written.write_text(json.dumps(found, indent=2) + "\n")
    print(f"\n{written}\n{draw(found, written.with_suffix('.png'))}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())

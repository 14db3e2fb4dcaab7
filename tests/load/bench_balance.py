"""Four unequal engines behind real Envoys: our balance against Envoy's own, on the same arrivals.

Engines of speed 1:2:4:8 (simulated, 16 slots) on a node each, a node Envoy each, one edge Envoy;
open-loop Poisson arrivals at 60, 80 and 90 % of total capacity; every policy gets the same trace,
and policies take turns within a round. Figures are ratios to Envoy's weighted LEAST_REQUEST
(weight = capacity, bias 1) of the same run: absolute times depend on the machine. A computed
yardstick that knows every length stands beside them.

    python -m tests.load.bench_balance [--seconds 15] [--rounds 2] [--json FILE]
"""

import argparse
import asyncio
import contextlib
import json
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
from control_plane.plan import Plan
from control_plane.resources import Resources, View, build_resources
from control_plane.snapshot import Snapshot, make_snapshot
from control_plane.weights import ACTIVE_REQUEST_BIASES, EXPONENTS
from engines.sockets import is_listening
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
SLOTS = 16
LOADS = (0.6, 0.8, 0.9)
MEAN_TOKENS = 15
STEP_S = 0.040  # of one token on the slowest engine
# The simulated engine's own batching: a step of 16 sequences takes 1 + 15/64 of one.
FULL_BATCH_SLOWDOWN = 1 + (SLOTS - 1) / 64
REFERENCE = "LEAST_REQUEST, weight = capacity"
YARDSTICK = "shortest expected delay (computed)"


@dataclass(frozen=True, slots=True)
class Balancer:
    """How Envoy is told to balance: weight = capacity ** exponent, and its bias."""

    exponent: float
    bias: float
    lb_policy: str = "LEAST_REQUEST"


OURS = Balancer(EXPONENTS["latency"], ACTIVE_REQUEST_BIASES["latency"])
BALANCERS: Mapping[str, Balancer] = {
    "wattmesh, balance: latency": OURS,
    REFERENCE: Balancer(1, 1),
    "ROUND_ROBIN, weight = capacity": Balancer(1, 0, "ROUND_ROBIN"),
    "capacity^2, bias 2": Balancer(2, 2),
    "capacity^3, bias 3": Balancer(3, 3),
    "capacity^4, bias 4": Balancer(4, 4),
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
        (cluster,), (assignment,) = resources.clusters, resources.endpoints
        cluster.lb_policy = cluster.LbPolicy.Value(self.balancer.lb_policy)
        cluster.ClearField("least_request_lb_config")
        if self.balancer.lb_policy == "LEAST_REQUEST":
            bias = cluster.least_request_lb_config.active_request_bias
            bias.default_value, bias.runtime_key = self.balancer.bias, "bench.bias"
        hosts = assignment.endpoints[0].lb_endpoints
        for host, speed in zip(hosts, SPEEDS, strict=True):
            host.load_balancing_weight.value = round((10 * speed) ** self.balancer.exponent)


def fleet() -> list[Engine]:
    """Return the engines as the queueing model has them."""
    return [Engine(speed / STEP_S, SLOTS, FULL_BATCH_SLOWDOWN) for speed in SPEEDS]


def trace_of(load: float, seconds: float, seed: int) -> list[Request]:
    """Return arrivals at this share of the fleet's capacity."""
    rate = load * sum(engine.capacity for engine in fleet()) / MEAN_TOKENS
    return poisson_trace(
        rate_per_s=rate, count=int(rate * seconds), mean_tokens=MEAN_TOKENS, seed=seed
    )


@contextlib.asynccontextmanager
async def mesh(root: Path, rendering: Rendering) -> AsyncIterator[tuple[Lab, Plan]]:
    """Run the engines, their node Envoys and the edge."""
    ports = free_ports(len(SPEEDS))
    async with running_lab(root, rendering) as lab, contextlib.AsyncExitStack() as stack:
        for index, speed in enumerate(SPEEDS):
            await stack.enter_async_context(simulator(lab.socket(f"e{index}"), speed))
        plan = make_plan(
            *(
                consul_entry(
                    f"n{index}.e{index}",
                    port=port,
                    gpu_power=str(100 * speed),
                    max_num_seqs=str(SLOTS),
                    socket=lab.socket(f"e{index}"),
                )
                for index, (speed, port) in enumerate(zip(SPEEDS, ports, strict=True))
            )
        )
        lab.store.publish(plan)
        for index in range(len(SPEEDS)):
            await stack.enter_async_context(lab.envoy("node", f"n{index}"))
        await stack.enter_async_context(lab.envoy("edge", "edge-1"))
        yield lab, plan


@contextlib.asynccontextmanager
async def simulator(socket: str, speed: float) -> AsyncIterator[None]:
    """Run a simulated engine whose single-sequence step is STEP_S / speed."""
    reference_step_s = 16e9 / 2039e9  # of the simulator at gpu_power 100
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engines.simulator", "--uds", socket),
        *("--served-model-name", "acme/fox", "--max-num-seqs", str(SLOTS)),
        *("--gpu-power", "100", "--speedup", str(reference_step_s * speed / STEP_S)),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await eventually(lambda: is_listening(socket), within_s=20)
        yield
    finally:
        process.kill()
        await process.wait()


async def run_trace(lab: Lab, trace: Sequence[Request]) -> list[float]:
    """Send a trace by the clock, whatever became of earlier requests; return the times."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(lab.url, connector=connector) as session:
        started = time.monotonic()

        async def send(request: Request) -> float:
            await asyncio.sleep(max(0.0, started + request.at_s - time.monotonic()))
            body = chat(max_tokens=round(request.tokens), messages=[{"role": "user"}])
            headers = {"content-type": "application/json"}
            began = time.monotonic()
            async with session.post("/v1/chat/completions", data=body, headers=headers) as response:
                await response.read()
                response.raise_for_status()
            return time.monotonic() - began

        return list(await asyncio.gather(*(send(request) for request in trace)))


def marked(plan: Plan, name: str) -> Plan:
    """Return a plan that differs in nothing that is pushed: an equal one is not rendered again."""
    mark = Problem(source="bench", path=name, value="", expected="", meanwhile="")
    return replace(plan, problems=(mark,))


def figures(times: Sequence[float], slo_s: float) -> dict[str, float]:
    """Return mean, p50, p99 in seconds and goodput: the share of requests within the SLO."""
    warm = sorted(times[len(times) // 10 :])
    return {
        "mean_s": statistics.fmean(warm),
        "p50_s": warm[len(warm) // 2],
        "p99_s": warm[int(len(warm) * 0.99)],
        "goodput": sum(1 for value in warm if value <= slo_s) / len(warm),
    }


async def measure(
    seconds: float, rounds: int, loads: Sequence[float]
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Return figures by load and balancer, one entry a round; balancers take turns."""
    slo_s = 2 * MEAN_TOKENS * STEP_S * len(SPEEDS) / sum(SPEEDS)  # 2 x the unloaded mean
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    root = Path(tempfile.mkdtemp(prefix="wm-", dir="/tmp"))
    rendering = Rendering()
    try:
        async with mesh(root, rendering) as (lab, plan):
            for turn in range(rounds):
                for load in loads:
                    trace = trace_of(load, seconds, seed=turn)
                    row = found.setdefault(f"{load:.0%}", {})
                    computed = simulate(fleet(), trace, shortest_expected_delay)
                    row.setdefault(YARDSTICK, []).append(figures(computed, slo_s))
                    for name, balancer in BALANCERS.items():
                        rendering.balancer = balancer
                        await lab.publish(marked(plan, name))
                        await asyncio.sleep(1.0)
                        times = await run_trace(lab, trace)
                        row.setdefault(name, []).append(figures(times, slo_s))
                        print(f"round {turn + 1}, {load:.0%}: {name}", file=sys.stderr)  # noqa: T201
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return found


def table(found: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]) -> str:
    """Return the medians as ratios to the reference balancer, one row a balancer."""
    lines = [f"{'mean, p99 (x the reference), goodput':42}" + "".join(f"{k:>22}" for k in found)]
    for name in next(iter(found.values())):
        cells = []
        for row in found.values():
            own, base = _median(row[name]), _median(row[REFERENCE])
            mean, p99 = own["mean_s"] / base["mean_s"], own["p99_s"] / base["p99_s"]
            cells.append(f"{mean:8.2f} {p99:6.2f} {own['goodput']:6.0%}")
        lines.append(f"{name:42}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines)


def _median(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: statistics.median(item[key] for item in rounds) for key in rounds[0]}


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description="Measure balancers over four unequal engines behind real Envoys.",
        epilog="Example: python -m tests.load.bench_balance --seconds 30 --rounds 3",
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="of each trace")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS))
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    options = parser.parse_args()
    found = asyncio.run(measure(options.seconds, options.rounds, options.loads))
    print(table(found))  # noqa: T201
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The bench's machines: simulated engines, a node Envoy each, and an edge, Envoy or HAProxy.

All balancers share them; only what the edge is told changes.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from control_plane.errors import Problem
from control_plane.identity import Pool
from control_plane.plan import Plan
from control_plane.resources import Resources, View, build_resources
from control_plane.snapshot import Snapshot, make_snapshot
from control_plane.weights import ACTIVE_REQUEST_BIASES, EXPONENTS
from engines.sockets import is_listening
from tests.load.balance_fleet import SLOTS, SPEEDS, STEP_S, fleet
from tests.load.balance_report import REFERENCE
from tests.load.haproxy import haproxy_binary, running_haproxy
from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry
from tests.support.envoy_lab import Lab, running_lab
from tests.support.eventually import eventually
from tests.support.ports import free_ports

MODEL = "acme/fox"
HAPROXY = "HAProxy leastconn, weight = capacity"
_POLICY = "defaults: {max_queue: 1000, correction: {enabled: false}}"  # nothing is refused
_REFERENCE_STEP_S = 16e9 / 2039e9  # of the simulator at gpu_power 100
_LEAST_WEIGHT = 10.0  # of capacity, before the exponent: rounding then moves no ratio


@dataclass(frozen=True, slots=True)
class Balancer:
    """How Envoy is told to balance: weight = capacity ** exponent, and its bias."""

    exponent: float
    bias: float
    lb_policy: str = "LEAST_REQUEST"
    counts_slots: bool = False  # capacity is that of a full batch, not the speed alone

    def weights(self, kind: str) -> list[int]:
        """Return the engines' weights."""
        capacities = [e.capacity for e in fleet(kind)] if self.counts_slots else list(SPEEDS)
        least = min(capacities)
        return [round((_LEAST_WEIGHT * c / least) ** self.exponent) for c in capacities]


BALANCERS: Mapping[str, Balancer] = {
    f"wattmesh, balance: {balance}": Balancer(EXPONENTS[balance], ACTIVE_REQUEST_BIASES[balance])
    for balance in ("latency", "proportional")
} | {
    REFERENCE: Balancer(1, 1),
    "ROUND_ROBIN, weight = capacity": Balancer(1, 0, "ROUND_ROBIN"),
    "LEAST_REQUEST, unweighted": Balancer(0, 1),
    "ROUND_ROBIN, unweighted": Balancer(0, 0, "ROUND_ROBIN"),
}


class Rendering:
    """Renders plans with the balancer of the moment in place of the plan's own."""

    def __init__(self, kind: str) -> None:
        self.balancer = BALANCERS[REFERENCE]
        self._kind = kind

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
        weights = self.balancer.weights(self._kind)
        for host, weight in zip(hosts.endpoints[0].lb_endpoints, weights, strict=True):
            host.load_balancing_weight.value = weight


@dataclass(frozen=True, slots=True)
class Bench:
    """What runs: the lab, its plan, how it is rendered, and where HAProxy listens, if at all."""

    lab: Lab
    plan: Plan
    rendering: Rendering
    haproxy_url: str | None

    async def prepare(self, balancer: Balancer | None) -> str:
        """Make a balancer the one in force, None for HAProxy; return the URL that it balances."""
        if balancer is None:
            return str(self.haproxy_url)
        self.rendering.balancer = balancer
        await self.lab.publish(_marked(self.plan, repr(balancer)))
        await asyncio.sleep(1.0)
        return self.lab.url


@contextlib.asynccontextmanager
async def running_bench(root: Path, kind: str) -> AsyncIterator[Bench]:
    """Run the engines, their node Envoys and the edges."""
    rendering, slots = Rendering(kind), SLOTS[kind]
    haproxy_port, *ports = free_ports(1 + len(SPEEDS))
    async with running_lab(root, rendering) as lab, contextlib.AsyncExitStack() as stack:
        for index, (speed, held) in enumerate(zip(SPEEDS, slots, strict=True)):
            await stack.enter_async_context(_simulator(lab.socket(f"e{index}"), speed, held))
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
        yield Bench(lab, plan, rendering, url)


@contextlib.asynccontextmanager
async def _simulator(socket: str, speed: float, slots: int) -> AsyncIterator[None]:
    """Run a simulated engine whose single-sequence step is STEP_S / speed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engines.simulator", "--uds", socket),
        *("--served-model-name", MODEL, "--max-num-seqs", str(slots)),
        *("--gpu-power", "100", "--speedup", str(_REFERENCE_STEP_S * speed / STEP_S)),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await eventually(lambda: is_listening(socket), within_s=20)
        yield
    finally:
        process.kill()
        await process.wait()


def _marked(plan: Plan, name: str) -> Plan:
    """Return a plan that differs in nothing that is pushed: an equal one is not rendered again."""
    mark = Problem(source="bench", path=name, value="", expected="", meanwhile="")
    return replace(plan, problems=(mark,))

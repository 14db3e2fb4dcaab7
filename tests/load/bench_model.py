"""Balancers over the queueing model of the bench's fleet, those that are not built included.

Exact arithmetic, no Envoy: tens of thousands of arrivals in seconds. Mean and p99 as ratios to
Envoy's weighted LEAST_REQUEST (weight = capacity, bias 1), medians over several traces.

    python -m tests.load.bench_model [--count 20000] [--traces 3] [--loads 0.6 0.8 0.9]
"""

import argparse
import itertools
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

from control_plane.weights import ACTIVE_REQUEST_BIASES, EXPONENTS
from tests.load.balance_fleet import LOADS, SLOTS, SPEEDS, fleet, trace_of
from tests.load.balancers import (
    Aliases,
    EnvoySchedule,
    FollowingUtilisation,
    least_connections,
    shortest_expected_delay,
)
from tests.load.queueing import Choose, Engine, simulate

Capacities = Callable[[Sequence[Engine]], list[float]]
Make = Callable[[Sequence[Engine]], Choose]


def speeds(engines: Sequence[Engine]) -> list[float]:
    """Return capacities as the control plane declares them: slots count for nothing."""
    return [engine.speed for engine in engines]


def full_batches(engines: Sequence[Engine]) -> list[float]:
    """Return capacities of full batches, which grow with the slots."""
    return [engine.capacity for engine in engines]


def schedule(exponent: float, bias: float, capacities: Capacities = speeds) -> Make:
    """Return how to make Envoy's schedule over capacities."""
    return lambda engines: EnvoySchedule([c**exponent for c in capacities(engines)], bias)


def following(*steps: tuple[float, float, float], capacities: Capacities = speeds) -> Make:
    """Return how to make a schedule whose exponent and bias follow the utilisation."""
    return lambda engines: FollowingUtilisation(capacities(engines), steps)


OURS = (EXPONENTS["latency"], ACTIVE_REQUEST_BIASES["latency"])
REFERENCE = "capacity, bias 1 (reference)"
BALANCERS: Mapping[str, Make] = {
    REFERENCE: schedule(1, 1),
    "capacity^2, bias 2": schedule(2, 2),
    "capacity^3, bias 3": schedule(3, 3),
    "capacity^3, bias 3.6": schedule(3, 3.6),
    "capacity^4, bias 3": schedule(4, 3),
    "capacity^4, bias 4": schedule(4, 4),
    "capacity^{:g}, bias {:g} (latency)".format(*OURS): schedule(*OURS),
    "capacity^5, bias 7.5": schedule(5, 7.5),
    "capacity^6, bias 9": schedule(6, 9),
    "latency, capacity counts slots": schedule(*OURS, full_batches),
    "latency, but bias 3 below 50 %": following((0.5, 4, 3), (9, *OURS)),
    "latency, but bias 2.5 below 50 %": following((0.5, 4, 2.5), (9, *OURS)),
    "both: counts slots, bias 3 below 50 %": following(
        (0.5, 4, 3), (9, *OURS), capacities=full_batches
    ),
    "bias 3, exponent 4 below 50 %, then 2.2": following((0.5, 4, 3), (9, 2.2, 3)),
    "virtual endpoints 1:2:4:8": lambda _: Aliases((1, 2, 4, 8)),
    "virtual endpoints 2:3:4:6": lambda _: Aliases((2, 3, 4, 6)),
    "leastconn, weight = capacity": lambda _: least_connections(SPEEDS),
    "shortest expected delay": lambda _: shortest_expected_delay,
}


def times(kind: str, load: float, name: str, count: int, seed: int) -> tuple[float, float]:
    """Return mean and p99 (seconds) of a trace under a balancer, without its first third.

    A balancer that follows the utilisation needs half a minute to know it.
    """
    engines = fleet(kind)
    choose = BALANCERS[name](engines)
    found = simulate(engines, trace_of(load, kind, count, seed), choose)
    warm = sorted(found[len(found) // 3 :])
    return statistics.fmean(warm), warm[int(len(warm) * 0.99)]


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Compare balancers in the queueing model.")
    parser.add_argument("--count", type=int, default=20_000, help="arrivals of a trace")
    parser.add_argument("--traces", type=int, default=3)
    parser.add_argument("--loads", type=float, nargs="+", default=list(LOADS))
    options = parser.parse_args()
    for kind in SLOTS:
        runs = list(itertools.product(options.loads, BALANCERS, range(options.traces)))
        arguments = [(kind, load, name, options.count, seed) for load, name, seed in runs]
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            found = dict(
                zip(runs, pool.map(times, *zip(*arguments, strict=True)), strict=True),
            )
        print(f"\n{kind} slots: mean p99 (x the reference)")  # noqa: T201
        print(f"{'':44}" + "".join(f"{load:>14.0%}" for load in options.loads))  # noqa: T201
        for name in BALANCERS:
            cells = [
                [
                    statistics.median(
                        found[load, name, seed][i] / found[load, REFERENCE, seed][i]
                        for seed in range(options.traces)
                    )
                    for i in (0, 1)
                ]
                for load in options.loads
            ]
            print(f"{name:44}" + "".join(f"{m:8.2f}{p:6.2f}" for m, p in cells))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())

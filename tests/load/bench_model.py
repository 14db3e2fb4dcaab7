"""Balancers over the queueing model of the bench's fleet, those that are not built included.

Exact arithmetic, no Envoy: tens of thousands of arrivals in seconds. Mean and p99 as ratios to
Envoy's weighted LEAST_REQUEST (weight = capacity, bias 1), medians over several traces.

    python -m tests.load.bench_model [--count 20000] [--traces 3]
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence

from tests.load.bench_balance import LOADS, MEAN_TOKENS, SLOTS, SPEEDS, fleet
from tests.load.queueing import (
    Aliases,
    Choose,
    EnvoySchedule,
    FollowingUtilisation,
    Request,
    least_connections,
    poisson_trace,
    shortest_expected_delay,
    simulate,
)


def schedule(exponent: float, bias: float) -> Callable[[Sequence[float]], Choose]:
    """Return how to make Envoy's schedule over capacities."""
    return lambda capacities: EnvoySchedule([c**exponent for c in capacities], bias)


def following(*steps: tuple[float, float]) -> Callable[[Sequence[float]], Choose]:
    """Return how to make a schedule whose exponent follows the utilisation."""
    return lambda capacities: FollowingUtilisation(capacities, steps)


REFERENCE = "capacity, bias 1 (reference)"
BALANCERS: Mapping[str, Callable[[Sequence[float]], Choose]] = {
    REFERENCE: schedule(1, 1),
    "capacity^2, bias 2": schedule(2, 2),
    "capacity^3, bias 3": schedule(3, 3),
    "capacity^3, bias 3.6": schedule(3, 3.6),
    "capacity^4, bias 4": schedule(4, 4),
    "capacity^4, bias 5.5 (latency)": schedule(4, 5.5),
    "capacity^5, bias 7.5": schedule(5, 7.5),
    "capacity^6, bias 9": schedule(6, 9),
    "exponent 4 to 70 %, then 3": following((0.70, 4), (9, 3)),
    "exponent 5 to 60 %, 4 to 75 %, then 2.5": following((0.60, 5), (0.75, 4), (9, 2.5)),
    "exponent 6 to 70 %, 3 to 85 %, then 2": following((0.70, 6), (0.85, 3), (9, 2)),
    "virtual endpoints 1:2:4:8": lambda _: Aliases((1, 2, 4, 8)),
    "virtual endpoints 2:3:4:6": lambda _: Aliases((2, 3, 4, 6)),
    "leastconn, weight = capacity": least_connections,
    "shortest expected delay": lambda _: shortest_expected_delay,
}


def trace_of(load: float, kind: str, count: int, seed: int) -> list[Request]:
    """Return arrivals at this share of the fleet's capacity."""
    rate = load * sum(engine.capacity for engine in fleet(SLOTS[kind])) / MEAN_TOKENS
    return poisson_trace(rate_per_s=rate, count=count, mean_tokens=MEAN_TOKENS, seed=seed)


def times(name: str, kind: str, trace: Sequence[Request]) -> tuple[float, float]:
    """Return mean and p99 (seconds) of a trace under a balancer, without its first tenth."""
    found = simulate(fleet(SLOTS[kind]), trace, BALANCERS[name](SPEEDS))
    warm = sorted(found[len(found) // 10 :])
    return statistics.fmean(warm), warm[int(len(warm) * 0.99)]


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Compare balancers in the queueing model.")
    parser.add_argument("--count", type=int, default=20_000, help="arrivals of a trace")
    parser.add_argument("--traces", type=int, default=3)
    options = parser.parse_args()
    for kind in SLOTS:
        print(f"\n{kind} slots: mean p99 (x the reference)")  # noqa: T201
        print(f"{'':44}" + "".join(f"{load:>14.0%}" for load in LOADS))  # noqa: T201
        found = {
            load: [
                {name: times(name, kind, trace) for name in BALANCERS}
                for trace in (
                    trace_of(load, kind, options.count, seed) for seed in range(options.traces)
                )
            ]
            for load in LOADS
        }
        for name in BALANCERS:
            cells = [
                [
                    statistics.median(run[name][i] / run[REFERENCE][i] for run in runs)
                    for i in (0, 1)
                ]
                for runs in found.values()
            ]
            print(f"{name:44}" + "".join(f"{m:8.2f}{p:6.2f}" for m, p in cells))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())

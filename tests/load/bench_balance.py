"""Four unequal engines behind real Envoys: our balance against others, on the same arrivals.

Engines of speed 1:2:4:8 (simulated) on a node each, a node Envoy each, one edge: our Envoy under
several balancers in turn, or HAProxy in its place. Open-loop Poisson arrivals at 60, 80 and 90 % of
total capacity; every balancer gets the same trace, and balancers take turns within a round.
Figures are ratios to Envoy's weighted LEAST_REQUEST (weight = capacity, bias 1) of the same trace:
absolute times depend on the machine. A computed yardstick that knows every length stands beside.

    python -m tests.load.bench_balance [--seconds 15] [--rounds 2] [--slots equal|proportional]
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.load.balance_fleet import LOADS, SLOTS, UNLOADED_MEAN_S, arrivals_per_s, fleet, trace_of
from tests.load.balance_lab import BALANCERS, HAPROXY, Balancer, running_bench
from tests.load.balance_report import REFERENCE, YARDSTICK, draw, table
from tests.load.balancers import shortest_expected_delay
from tests.load.haproxy import haproxy_binary
from tests.load.open_loop import figures, run_trace
from tests.load.queueing import simulate

SLO_S = 2 * UNLOADED_MEAN_S

Rows = Mapping[str, Balancer | None]  # None: HAProxy
Found = dict[str, dict[str, list[dict[str, float]]]]  # by load and balancer, an entry a round


def rows(only: Sequence[str], also: Sequence[Balancer]) -> Rows:
    """Return what is measured: all, or the reference and what is named; and what is added."""
    found: dict[str, Balancer | None] = dict(BALANCERS)
    if haproxy_binary() is not None:
        found[HAPROXY] = None
    if only:
        found = {name: found[name] for name in found if name in (REFERENCE, *only)}
    for item in also:
        capacity = "capacity with slots" if item.counts_slots else "capacity"
        found[f"{capacity}^{item.exponent:g}, bias {item.bias:g}"] = item
    return found


async def measure(
    seconds: float, rounds: int, loads: Sequence[float], kind: str, balancers: Rows
) -> Found:
    """Return the figures of all balancers, which take turns."""
    found: Found = {}
    root = Path(tempfile.mkdtemp(prefix="wm-", dir="/tmp"))
    try:
        async with running_bench(root, kind) as bench:
            for turn in range(rounds):
                for load in loads:
                    count = int(arrivals_per_s(load, kind) * seconds)
                    trace = trace_of(load, kind, count, seed=turn)
                    row = found.setdefault(f"{load:.0%}", {})
                    computed = simulate(fleet(kind), trace, shortest_expected_delay)
                    row.setdefault(YARDSTICK, []).append(figures(computed, SLO_S))
                    for name, balancer in balancers.items():
                        times = await run_trace(await bench.prepare(balancer), trace)
                        row.setdefault(name, []).append(figures(times, SLO_S))
                        print(f"round {turn + 1}, {load:.0%}: {name}", file=sys.stderr)  # noqa: T201
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return found


def balancer(text: str) -> Balancer:
    """Return what EXPONENT:BIAS or EXPONENT:BIAS:slots means."""
    exponent, bias, *slots = text.split(":")
    if slots not in ([], ["slots"]):
        raise ValueError(text)
    return Balancer(float(exponent), float(bias), counts_slots=bool(slots))


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(
        description="Measure balancers over four unequal engines behind real Envoys.",
        epilog="Example: python -m tests.load.bench_balance --seconds 30 --rounds 3 --also 4:3",
    )
    made.add_argument("--seconds", type=float, default=15.0, help="of each trace")
    made.add_argument("--rounds", type=int, default=2)
    made.add_argument("--loads", type=float, nargs="+", default=list(LOADS))
    made.add_argument("--slots", choices=list(SLOTS), default="equal", help="of the engines")
    made.add_argument(
        *("--only",), nargs="+", metavar="NAME", default=[], help="of the balancers, as printed"
    )
    made.add_argument(
        "--also",
        type=balancer,
        nargs="+",
        metavar="EXPONENT:BIAS[:slots]",
        default=[],
        help="LEAST_REQUEST with these; with :slots capacity is that of a full batch",
    )
    made.add_argument("--results", type=Path, default=Path("bench-results"), metavar="DIR")
    return made


def main() -> int:
    """Run from the command line."""
    options = parser().parse_args()
    balancers = rows(options.only, options.also)
    missing = {}
    if haproxy_binary() is None:
        missing[HAPROXY] = "NOT MEASURED: haproxy is not on PATH"
        print(f"{HAPROXY}: {missing[HAPROXY]}", file=sys.stderr)  # noqa: T201
    found = asyncio.run(
        measure(options.seconds, options.rounds, options.loads, options.slots, balancers)
    )
    print(table(found, missing))  # noqa: T201
    options.results.mkdir(parents=True, exist_ok=True)
    written = options.results / f"balance-{options.slots}.json"
    conditions = {name: getattr(options, name) for name in ("seconds", "rounds", "slots")}
    result = {**conditions, "slo_s": SLO_S, "loads": found, "missing": missing}
    written.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\n{written}\n{draw(found, written.with_suffix('.png'))}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())

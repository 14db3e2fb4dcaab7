"""Planning ten thousand engines: everything from nothing, and then one engine that changed.

The steps are those of a running control plane, in one process on one core. Medians of several
rounds, in milliseconds; the last column is the part of the whole that a change costs.

    python -m tests.load.bench_plan [--nodes 1250] [--engines 8] [--models 40]
"""

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from control_plane.catalog import CatalogParser
from control_plane.fleet import FleetBuilder
from control_plane.metrics import Metrics
from control_plane.plan_metrics import PlanGauges
from control_plane.planner import Planner
from control_plane.policy import Policy
from control_plane.rendering import Renderer
from control_plane.resources import View
from control_plane.store import SnapshotStore
from engines.gpu import load_gpu_table

GPUS = (
    "NVIDIA H100 80GB HBM3",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA L4",
    "NVIDIA A10",
    "NVIDIA L40S",
)
EDGE = View(role="edge", listen_address="0.0.0.0", listen_port=10000)
NODE = View(role="node", node_id="n0")
STEPS = ("parse", "fleet", "plan", "gauges", "edge", "node")


def entries(nodes: int, engines: int, models: int) -> list[dict[str, Any]]:
    """Return what Consul would answer of a fleet of mixed cards."""
    chance = random.Random(1)
    found = []
    for i in range(nodes):
        gpu = chance.choice(GPUS)
        for j in range(engines):
            meta = {
                "model": f"acme/m{(i * engines + j) % models}",
                "socket": f"/run/wattmesh/e{j}.sock",
                "gpu_model": gpu,
                "max_num_seqs": "256",
                "state": "ready",
            }
            service = {
                "ID": f"n{i}.e{j}",
                "Service": "wattmesh-engine",
                "Address": f"10.{i // 250}.{i % 250}.1",
                "Port": 9901,
                "Meta": meta,
            }
            checks = [{"CheckID": f"service:n{i}.e{j}", "Status": "passing"}]
            found.append({"Node": {"Node": f"n{i}"}, "Service": service, "Checks": checks})
    return found


class Pipeline:
    """A control plane's steps without its sockets; times what each takes, in milliseconds."""

    def __init__(self) -> None:
        metrics = Metrics()
        self._parser = CatalogParser("consul")
        self._fleets, self._planner = FleetBuilder(load_gpu_table()), Planner()
        self._gauges = PlanGauges(metrics)
        renderer = Renderer()
        self._store = SnapshotStore(renderer.render, metrics, renderer.part, renderer.drop)

    def run(self, answer: bytes) -> dict[str, float]:
        """Take an answer through all steps."""
        gc.collect()
        took: dict[str, float] = {}

        def timed(step: str, work: Callable[[], Any]) -> Any:
            began = time.perf_counter()
            result = work()
            took[step] = (time.perf_counter() - began) * 1000
            return result

        catalog = timed("parse", lambda: self._parser.parse(answer))
        fleet = timed("fleet", lambda: self._fleets.build(catalog))
        plan = timed("plan", lambda: self._planner.plan(fleet, Policy(), 0.0))
        timed("gauges", lambda: self._gauges.show(plan))
        self._store.publish(plan)
        timed("edge", lambda: self._store.snapshot(EDGE))
        timed("node", lambda: self._store.snapshot(NODE))
        return took


def measure(nodes: int, engines: int, models: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the medians of a full run and of one changed engine."""
    found: dict[str, list[dict[str, float]]] = {"full": [], "one engine": []}
    catalog = entries(nodes, engines, models)
    for turn in range(rounds):
        pipeline = Pipeline()
        found["full"].append(pipeline.run(json.dumps(catalog).encode()))
        catalog[turn]["Service"]["Meta"]["gpu_power"] = str(70 + turn)  # of the node that is shown
        found["one engine"].append(pipeline.run(json.dumps(catalog).encode()))
    return {
        kind: {step: statistics.median(run[step] for run in runs) for step in STEPS}
        for kind, runs in found.items()
    }


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Measure planning.")
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--engines", type=int, default=8, help="of each node")
    parser.add_argument("--models", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=Path("bench-results"), metavar="DIR")
    options = parser.parse_args()
    found = measure(options.nodes, options.engines, options.models, options.rounds)
    full, one = found["full"], found["one engine"]
    print(f"{options.nodes * options.engines} engines on {options.nodes} nodes")  # noqa: T201
    print(f"{'ms':10}{'full':>10}{'one engine':>12}{'part':>8}")  # noqa: T201
    rows = {step: (full[step], one[step]) for step in STEPS}
    rows["planning"] = tuple(
        sum(run[s] for s in ("fleet", "plan", "gauges")) for run in (full, one)
    )
    rows["all"] = (sum(full.values()), sum(one.values()))
    for step, (whole, part) in rows.items():
        print(f"{step:10}{whole:10.1f}{part:12.1f}{part / whole:8.1%}")  # noqa: T201
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "plan.json").write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

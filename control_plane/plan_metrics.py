"""The plan in force as gauges: what is not in the plan any more leaves no series behind.

Only nodes and pools that changed are touched: a fleet of ten thousand engines has as many series.
"""

from collections import Counter
from collections.abc import Iterable

from control_plane.fleet import EngineState
from control_plane.metrics import Metrics
from control_plane.plan import EnginePlan, NodePlan, Plan, PoolPlan


class PlanGauges:
    """The gauges that describe the plan in force."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._nodes: dict[str, NodePlan] = {}
        self._pools: dict[str, PoolPlan] = {}
        self._states: Counter[EngineState] = Counter()

    def show(self, plan: Plan) -> None:
        """Set every gauge that differs from the plan shown before."""
        nodes = {node.id: node for node in plan.nodes}
        changed = {*self._nodes, *nodes}
        changed = {name for name in changed if self._nodes.get(name) is not nodes.get(name)}
        old = [self._nodes[name] for name in changed if name in self._nodes]
        new = [nodes[name] for name in changed if name in nodes]
        self._show_engines(_engines(old), _engines(new))
        for state in EngineState:
            self._metrics.engines.labels(state.value).set(self._states[state])
        self._show_pools(plan)
        self._nodes = nodes

    def _show_engines(self, old: list[EnginePlan], new: list[EnginePlan]) -> None:
        weights, powers = self._metrics.engine_weight, self._metrics.engine_gpu_power
        capacities = self._metrics.engine_capacity
        kept = {_labels(engine) for engine in new}
        sourced = {(*_labels(engine), engine.power_source.value) for engine in new}
        for engine in old:
            labels, source = _labels(engine), engine.power_source.value
            if labels not in kept:
                weights.remove(*labels)
                capacities.remove(*labels)
            if (*labels, source) not in sourced:
                powers.remove(*labels, source)
        for engine in new:
            labels, source = _labels(engine), engine.power_source.value
            weights.labels(*labels).set(engine.weight)
            capacities.labels(*labels).set(engine.capacity)
            powers.labels(*labels, source).set(engine.gpu_power)
        self._states.subtract(engine.state for engine in old)
        self._states.update(engine.state for engine in new)

    def _show_pools(self, plan: Plan) -> None:
        pools = {pool.pool.cluster: pool for pool in plan.pools}
        info = self._metrics.pool_info
        for cluster in self._pools.keys() - pools.keys():
            gone = self._pools[cluster].pool
            info.remove(cluster, gone.model, gone.version)
        for cluster in pools.keys() - self._pools.keys():
            pool = pools[cluster].pool
            info.labels(cluster, pool.model, pool.version).set(1)
        self._pools = pools


def _engines(nodes: Iterable[NodePlan]) -> list[EnginePlan]:
    return [engine for node in nodes for engine in node.engines]


def _labels(engine: EnginePlan) -> tuple[str, str, str]:
    return engine.node, engine.engine, engine.pool.cluster

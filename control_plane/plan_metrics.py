"""The plan in force as gauges: what is not in the plan any more leaves no series behind."""

from collections import Counter

from control_plane.fleet import EngineState
from control_plane.metrics import Metrics
from control_plane.plan import Plan


def set_plan_metrics(metrics: Metrics, plan: Plan) -> None:
    """Set every gauge that describes the plan in force."""
    states = Counter(engine.state for engine in plan.engines)
    for state in EngineState:
        metrics.engines.labels(state.value).set(states[state])
    metrics.engine_weight.clear()
    metrics.engine_gpu_power.clear()
    for engine in plan.engines:
        labels = (engine.node, engine.engine, engine.pool.cluster)
        metrics.engine_weight.labels(*labels).set(engine.weight)
        source = engine.power_source.value
        metrics.engine_gpu_power.labels(*labels, source).set(engine.gpu_power)
    metrics.pool_info.clear()
    for pool in plan.pools:
        metrics.pool_info.labels(pool.pool.cluster, pool.pool.model, pool.pool.version).set(1)

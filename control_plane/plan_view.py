"""A plan and a fleet as plain JSON values: the form of `plan -o json` and of the admin API.

Public API. Unknown values are left out or null, never zero. `share` is the part (0-1) of its
model's traffic that an engine gets at full load: by capacity, whatever the balance.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from control_plane.fleet import Engine, Fleet, Node
from control_plane.guard import GuardState
from control_plane.identity import Pool
from control_plane.limits import TokenBucket
from control_plane.plan import EnginePlan, ModelPlan, Plan, PoolPlan


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON values."""
    shares = engine_shares(plan)
    return {
        "engines": [_engine_plan(engine, shares) for engine in plan.engines],
        "models": [_model(model) for model in plan.models],
        "request_limit": _bucket(plan.request_limit),
        "edges": list(plan.edges),
        "pools": [_pool(pool) for pool in plan.pools],
        "problems": [str(problem) for problem in plan.problems],
    }


def fleet_to_json(fleet: Fleet, guard: GuardState) -> dict[str, Any]:
    """Return the fleet as JSON values, and which of its engines are held against a loss."""
    return {
        "nodes": [_node(node) for node in fleet.nodes],
        "held": sorted(guard.held),
        "problems": [str(problem) for problem in fleet.problems],
    }


def engine_shares(plan: Plan) -> Mapping[str, float]:
    """Return each live engine's share (0-1) of its model's traffic, by engine ID."""
    routed: dict[Pool, float] = {}
    live = {pool.pool for pool in plan.pools if pool.endpoints}
    for model in plan.models:
        total = sum(weight for _, weight in model.routes)
        for pool, weight in model.routes:
            routed[pool] = weight / total if total else 0.0
    capacities: dict[Pool, float] = {}
    for engine in plan.engines:
        if engine.weight:
            capacities[engine.pool] = capacities.get(engine.pool, 0.0) + engine.capacity
    return {
        engine.id: routed.get(engine.pool, 0.0) * engine.capacity / capacities[engine.pool]
        for engine in plan.engines
        if engine.weight and engine.pool in live
    }


def _engine_plan(engine: EnginePlan, shares: Mapping[str, float]) -> dict[str, Any]:
    return {
        "node": engine.node,
        "engine": engine.engine,
        "id": engine.id,
        "model": engine.pool.model,
        "version": engine.pool.version,
        "gpu": engine.gpu,
        "gpu_count": engine.gpu_count,
        "gpu_power_limit_w": engine.power_limit_w,
        "gpu_power": engine.gpu_power,
        "power_source": engine.power_source.value,
        "capacity": round(engine.capacity, 1),
        "prefill_tokens_per_s": _rounded(engine.prefill_tokens_per_s),
        "decode_tokens_per_s": _rounded(engine.decode_tokens_per_s),
        "weight": engine.weight,
        "max_connections": engine.max_connections,
        "state": engine.state.value,
        "share": round(shares.get(engine.id, 0.0), 6),
    }


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def _model(model: ModelPlan) -> dict[str, Any]:
    return {
        "model": model.model,
        "balance": model.balance,
        "generation_timeout_s": model.generation_timeout_s,
        "request_limit": _bucket(model.request_limit),
        "live": model.live,
        "versions": [{"version": pool.version, "weight": weight} for pool, weight in model.routes],
    }


def _bucket(bucket: TokenBucket | None) -> dict[str, Any] | None:
    """A limit of all edges together; null = none."""
    if bucket is None:
        return None
    return {
        "requests_per_s": round(bucket.tokens_per_fill / bucket.fill_interval_s, 3),
        "burst": bucket.max_tokens,
    }


def _pool(pool: PoolPlan) -> dict[str, Any]:
    return {
        "model": pool.pool.model,
        "version": pool.pool.version,
        "cluster": pool.pool.cluster,
        "endpoints": [
            {
                "node": endpoint.node,
                "address": endpoint.address,
                "port": endpoint.port,
                "weight": endpoint.weight,
            }
            for endpoint in pool.endpoints
        ],
        "slow_start_s": pool.slow_start_s,
        "max_queue": pool.max_queue,
        "edge_thresholds": asdict(pool.edge_thresholds),
    }


def _node(node: Node) -> dict[str, Any]:
    return {
        "node": node.id,
        "address": node.address,
        "port": node.port,
        "engines": [_engine(engine) for engine in node.engines],
    }


def _engine(engine: Engine) -> dict[str, Any]:
    return {
        "engine": engine.name,
        "id": engine.id,
        "model": engine.pool.model,
        "version": engine.pool.version,
        "socket": engine.socket,
        "state": engine.state.value,
        "gpu": engine.gpu,
        "gpu_count": engine.gpu_count,
        "gpu_power": engine.gpu_power,
        "power_source": engine.power_source.value,
        "max_num_seqs": engine.max_num_seqs,
        "keep_alive_s": engine.keep_alive_s,
    }

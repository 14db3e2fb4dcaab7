"""The plan: who gets which share of the traffic, and how much each engine and pool may hold.

Pure arithmetic over a fleet and a policy. Weights are whole numbers from 1 up; a pool that has no
live engine stays in the plan with no endpoint, because "empty" is not "deleted".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from control_plane.capacity import Capacity, Mix, relative_power
from control_plane.errors import Problem
from control_plane.fleet import Engine, EngineState, Fleet, Node, PowerSource
from control_plane.identity import Pool
from control_plane.limits import TokenBucket, token_bucket
from control_plane.policy import Balance, ModelPolicy, Policy
from control_plane.requirements import apply_requirements
from control_plane.thresholds import PoolThresholds, edge_thresholds, engine_limit
from control_plane.weights import WeightScale, weight_scale
from engines.keep_alive import ENGINE_KEEP_ALIVE_S

NO_CORRECTIONS: Mapping[str, float] = MappingProxyType({})
_MAX_ROUTE_WEIGHT = 2**24  # of one version; 255 versions still fit uint32


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """One engine's part of its pool."""

    id: str
    node: str
    engine: str
    pool: Pool
    socket: str
    state: EngineState
    gpu: str | None
    gpu_count: int | None
    gpu_power: float  # declared, or of the table for the model's mix; one A100-80GB = 100
    power_source: PowerSource
    capacity: float  # what weights follow: gpu_power, corrected where it was measured
    prefill_tokens_per_s: float | None  # of the table's model; None = GPU unknown
    decode_tokens_per_s: float | None
    weight: int  # within its pool on its node; 0 means "gets nothing", and never reaches Envoy
    max_connections: int  # concurrent requests that the node Envoy lets into this engine
    keep_alive_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint:
    """One node as the edge sees it."""

    node: str
    address: str
    port: int
    weight: int  # of the summed capacity of its live engines of the pool; at least 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """One (model, version): its live endpoints and its breakers at the edge and at each node."""

    pool: Pool
    balance: Balance
    endpoints: tuple[NodeEndpoint, ...]  # live nodes only, sorted by node
    slow_start_s: float  # 0 = off
    max_queue: float  # requests that may wait at a node for each that its engines hold
    edge_thresholds: PoolThresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node: its mesh listener and its engines, live or not, sorted by name."""

    id: str
    address: str
    port: int
    engines: tuple[EnginePlan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """How requests for a model are split over its versions."""

    model: str
    routes: tuple[tuple[Pool, int], ...]  # weights >= 0 with a sum >= 1, sorted by pool
    balance: Balance
    generation_timeout_s: float
    request_limit: TokenBucket | None
    live: bool  # at least one endpoint in at least one routed pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that the Envoys are told, before it is put into their words."""

    models: tuple[ModelPlan, ...] = ()  # sorted by name
    pools: tuple[PoolPlan, ...] = ()  # sorted by pool
    nodes: tuple[NodePlan, ...] = ()  # sorted by ID
    max_request_bytes: int = 32 * 1024 * 1024
    retry_after_s: int = 2
    request_limit: TokenBucket | None = None  # of all models together
    edges: tuple[str, ...] = ()  # node IDs of the edges that share the limits, sorted
    problems: tuple[Problem, ...] = ()

    @property
    def limited(self) -> bool:
        """Whether any request limit is in force, so that the number of edges matters."""
        return bool(self.request_limit or any(model.request_limit for model in self.models))

    @property
    def engines(self) -> tuple[EnginePlan, ...]:
        """All engines of all nodes."""
        return tuple(engine for node in self.nodes for engine in node.engines)


def plan_fleet(
    fleet: Fleet,
    policy: Policy,
    now: float,
    corrections: Mapping[str, float] = NO_CORRECTIONS,
) -> Plan:
    """Return the plan at the time `now` (seconds since the epoch; weights do not ramp yet).

    `corrections` are measured capacities by engine ID, on the scale of gpu_power; an engine that
    is not among them counts with its gpu_power.
    """
    fleet = apply_requirements(fleet, policy)
    powers = _powers(fleet, policy)
    capacities = {
        engine: corrections.get(engine, gpu_power) for engine, gpu_power in powers.items()
    }
    by_pool = _engines_by_pool(fleet)
    scales = _scales(fleet, policy, capacities)
    nodes = tuple(_plan_node(node, scales, powers, capacities) for node in fleet.nodes)
    members = _members_by_pool(nodes)
    by_model: dict[str, dict[Pool, list[Engine]]] = {}
    for pool, engines in by_pool.items():
        by_model.setdefault(pool.model, {})[pool] = engines
    live_capacities = _live_capacities(nodes)
    names = sorted({*by_model, *policy.models})
    problems = list(fleet.problems)
    models: list[ModelPlan] = []
    pools: dict[Pool, PoolPlan] = {}
    for name in names:
        versions, model = by_model.get(name, {}), policy.model(name)
        routes, found = _plan_routes(name, versions, policy, capacities)
        problems += found
        for pool in sorted({pool for pool, _ in routes} | set(versions)):
            pools[pool] = _plan_pool(pool, model, members.get(pool, ()), scales.get(pool))
        models.append(
            ModelPlan(
                model=name,
                routes=routes,
                balance=model.balance,
                generation_timeout_s=model.generation_timeout_s,
                request_limit=token_bucket(model.request_limit, live_capacities.get(name, 0.0)),
                live=any(weight and pools[pool].endpoints for pool, weight in routes),
            )
        )
    return Plan(
        models=tuple(models),
        pools=tuple(pools[pool] for pool in sorted(pools)),
        nodes=nodes,
        max_request_bytes=policy.max_request_bytes,
        retry_after_s=policy.retry_after_s,
        request_limit=token_bucket(policy.request_limit, sum(live_capacities.values())),
        problems=tuple(problems),
    )


def _engines_by_pool(fleet: Fleet) -> dict[Pool, list[Engine]]:
    by_pool: dict[Pool, list[Engine]] = {}
    for node in fleet.nodes:
        for engine in node.engines:
            by_pool.setdefault(engine.pool, []).append(engine)
    return by_pool


def _scales(
    fleet: Fleet, policy: Policy, capacities: Mapping[str, float]
) -> dict[Pool, WeightScale]:
    by_node: dict[Pool, dict[str, list[float]]] = {}
    for node in fleet.nodes:
        for engine in node.engines:
            nodes = by_node.setdefault(engine.pool, {})
            nodes.setdefault(node.id, []).append(capacities[engine.id])
    return {
        pool: weight_scale(nodes.values(), policy.model(pool.model).balance)
        for pool, nodes in by_node.items()
    }


def _powers(fleet: Fleet, policy: Policy) -> dict[str, float]:
    """Return each engine's gpu_power by ID, those of the table for their model's mix."""
    return {
        engine.id: _power(engine, policy.model(engine.pool.model).mix, fleet.reference)
        for node in fleet.nodes
        for engine in node.engines
    }


def _power(engine: Engine, mix: Mix, reference: Capacity | None) -> float:
    if engine.power_source is not PowerSource.TABLE or not (engine.capacity and reference):
        return engine.gpu_power
    return relative_power(engine.capacity, mix, reference)


def _plan_node(
    node: Node,
    scales: Mapping[Pool, WeightScale],
    powers: Mapping[str, float],
    capacities: Mapping[str, float],
) -> NodePlan:
    engines = tuple(
        EnginePlan(
            id=engine.id,
            node=node.id,
            engine=engine.name,
            pool=engine.pool,
            socket=engine.socket,
            state=engine.state,
            gpu=engine.gpu,
            gpu_count=engine.gpu_count,
            gpu_power=powers[engine.id],
            power_source=engine.power_source,
            capacity=capacities[engine.id],
            prefill_tokens_per_s=engine.capacity.prefill_tokens_per_s if engine.capacity else None,
            decode_tokens_per_s=engine.capacity.decode_tokens_per_s if engine.capacity else None,
            weight=scales[engine.pool].weight(capacities[engine.id])
            if engine.state is EngineState.READY
            else 0,
            max_connections=engine_limit(engine.max_num_seqs),
            keep_alive_s=engine.keep_alive_s or ENGINE_KEEP_ALIVE_S,
        )
        for engine in node.engines
    )
    return NodePlan(id=node.id, address=node.address, port=node.port, engines=engines)


def _live_capacities(nodes: Sequence[NodePlan]) -> dict[str, float]:
    """Return the capacity of the engines that get requests, by model."""
    capacities: dict[str, float] = {}
    for node in nodes:
        for engine in node.engines:
            if engine.weight:
                model = engine.pool.model
                capacities[model] = capacities.get(model, 0.0) + engine.capacity
    return capacities


def _members_by_pool(
    nodes: Sequence[NodePlan],
) -> dict[Pool, list[tuple[NodePlan, list[EnginePlan]]]]:
    """Return the nodes of every pool with their engines in it, so that cost grows with engines."""
    members: dict[Pool, list[tuple[NodePlan, list[EnginePlan]]]] = {}
    for node in nodes:
        for engine in node.engines:
            pool_nodes = members.setdefault(engine.pool, [])
            if not pool_nodes or pool_nodes[-1][0] is not node:
                pool_nodes.append((node, []))
            pool_nodes[-1][1].append(engine)
    return members


def _plan_pool(
    pool: Pool,
    policy: ModelPolicy,
    members: Sequence[tuple[NodePlan, list[EnginePlan]]],
    scale: WeightScale | None,
) -> PoolPlan:
    endpoints: list[NodeEndpoint] = []
    held = 0
    for node, engines in members:
        held += sum(engine.max_connections for engine in engines)
        capacity = sum(engine.capacity for engine in engines if engine.weight)
        if capacity and scale is not None:
            endpoints.append(
                NodeEndpoint(
                    node=node.id,
                    address=node.address,
                    port=node.port,
                    weight=scale.weight(capacity),
                )
            )
    return PoolPlan(
        pool=pool,
        balance=policy.balance,
        endpoints=tuple(endpoints),
        slow_start_s=policy.slow_start_s if policy.balance == "latency" else 0.0,
        max_queue=policy.max_queue,
        edge_thresholds=edge_thresholds(held, policy.max_queue),
    )


def _plan_routes(
    model: str,
    versions: Mapping[Pool, Sequence[Engine]],
    policy: Policy,
    capacities: Mapping[str, float],
) -> tuple[tuple[tuple[Pool, int], ...], list[Problem]]:
    """Return the split of a model over its versions, and versions that no split names."""
    stated = policy.model(model).versions
    if stated is None and len(versions) == 1:
        return tuple((pool, 1) for pool in versions), []  # power moves endpoints, not routes
    if stated is None:
        routes = {pool: _route_weight(engines, capacities) for pool, engines in versions.items()}
        return tuple(sorted(routes.items())) or ((Pool(model), 1),), []
    problems = [
        Problem(
            source="policy",
            path=f"models.{model}.versions.{pool.version}",
            value="missing",
            expected="a weight for every version that has engines",
            meanwhile="this version gets no traffic",
        )
        for pool in sorted(versions)
        if pool.version not in stated
    ]
    return tuple(sorted((Pool(model, version), w) for version, w in stated.items())), problems


def _route_weight(engines: Sequence[Engine], capacities: Mapping[str, float]) -> int:
    """Return the summed capacity of a version's live engines, at least 1, within uint32."""
    live = sum(capacities[engine.id] for engine in engines if engine.state is EngineState.READY)
    return min(max(1, round(live)), _MAX_ROUTE_WEIGHT)

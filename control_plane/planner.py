"""From a fleet and a policy to the plan, again and again.

Pure arithmetic. What did not change since the last plan is taken over as the same objects, node by
node and pool by pool, so that the cost of a change grows with the change; a plan made from nothing
is equal to it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from control_plane.capacity import Capacity, Mix, relative_power
from control_plane.errors import Problem
from control_plane.fleet import Engine, EngineState, Fleet, Node, PowerSource
from control_plane.identity import Pool
from control_plane.limits import token_bucket
from control_plane.plan import EnginePlan, ModelPlan, NodeEndpoint, NodePlan, Plan, PoolPlan
from control_plane.policy import ModelPolicy, Policy
from control_plane.requirements import admit
from control_plane.thresholds import edge_thresholds, engine_limit
from control_plane.weights import WeightScale, pool_scale
from engines.keep_alive import ENGINE_KEEP_ALIVE_S

# Measured over declared capacity, by engine ID and declaration: of another declaration nothing is
# known, so that a changed power cap counts at once.
Corrections = Mapping[tuple[str, str], float]
NO_CORRECTIONS: Corrections = MappingProxyType({})
_MAX_ROUTE_WEIGHT = 2**24  # of one version; 255 versions still fit uint32


def plan_fleet(
    fleet: Fleet,
    policy: Policy,
    now: float,
    corrections: Corrections = NO_CORRECTIONS,
) -> Plan:
    """Return the plan at the time `now` (seconds since the epoch; nothing depends on it yet).

    An engine that is not among the `corrections` counts with its gpu_power.
    """
    return Planner().plan(fleet, policy, now, corrections)


@dataclass(frozen=True, slots=True)
class _Measured:
    """One engine with what its weight follows from."""

    engine: Engine
    gpu_power: float
    capacity: float


@dataclass(frozen=True, slots=True)
class _Share:
    """What one node brings to one pool."""

    node: str
    address: str
    port: int
    capacities: tuple[float, ...]  # of its engines, live or not
    live: float  # of those that get requests
    held: int  # requests that its engines hold together


@dataclass(frozen=True, slots=True)
class _Examined:
    """One node, once its engines' capacities are known."""

    node: Node
    corrections: tuple[float, ...]
    engines: tuple[_Measured, ...]
    shares: Mapping[Pool, _Share]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class _PlannedPool:
    """A pool's plan, and what it was made from."""

    members: tuple[_Share, ...]
    scale: WeightScale | None  # of the nodes; None for a pool that has a route and no engine
    engine_scale: WeightScale | None  # of the engines, whose powers sum to less
    live: float  # capacity of its engines that get requests
    plan: PoolPlan


@dataclass(frozen=True, slots=True)
class _PlannedNode:
    """A node's plan, and what it was made from."""

    examined: _Examined
    scales: tuple[WeightScale | None, ...]
    plan: NodePlan


class Planner:
    """Makes one plan after the other; holds the parts of the last one."""

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._reference: Capacity | None = None
        self._examined: dict[str, _Examined] = {}
        self._pools: dict[Pool, _PlannedPool] = {}
        self._nodes: dict[str, _PlannedNode] = {}
        self._models: dict[str, ModelPlan] = {}

    def plan(
        self,
        fleet: Fleet,
        policy: Policy,
        now: float,
        corrections: Corrections = NO_CORRECTIONS,
    ) -> Plan:
        """Return the plan, as `plan_fleet` does."""
        if policy != self._policy or fleet.reference != self._reference:
            self._examined, self._pools, self._nodes, self._models = {}, {}, {}, {}
        self._policy, self._reference = policy, fleet.reference
        self._examined = {node.id: self._examine(node, policy, corrections) for node in fleet.nodes}
        self._pools = {
            pool: self._plan_pool(pool, policy.model(pool.model), tuple(shares))
            for pool, shares in self._members().items()
        }
        self._nodes = {node_id: self._plan_node(node_id) for node_id in self._examined}
        problems = list(fleet.problems)
        for examined in self._examined.values():
            problems += examined.problems
        return self._assemble(policy, problems)

    def _examine(self, node: Node, policy: Policy, corrections: Corrections) -> _Examined:
        """Return the node's capacities, taken over where neither it nor they changed."""
        last = self._examined.get(node.id)
        known = (
            tuple(
                [corrections.get((engine.id, engine.declaration), 1.0) for engine in node.engines]
            )
            if corrections
            else (1.0,) * len(node.engines)
        )
        if last is not None and last.node == node and last.corrections == known:
            return last
        problems: list[Problem] = []
        engines = []
        for engine, factor in zip(node.engines, known, strict=True):
            model = policy.model(engine.pool.model)
            admitted, found = admit(engine, model.requires)
            problems += found
            power = _power(engine, model.mix, self._reference)
            engines.append(_Measured(admitted, power, power * factor))
        shares = _shares(node, engines)
        if last is not None:
            shares = {pool: _same(last.shares.get(pool), share) for pool, share in shares.items()}
        return _Examined(node, known, tuple(engines), MappingProxyType(shares), tuple(problems))

    def _members(self) -> dict[Pool, list[_Share]]:
        """Return every pool's nodes, in the order of the nodes."""
        members: dict[Pool, list[_Share]] = {}
        for examined in self._examined.values():
            for pool, share in examined.shares.items():
                members.setdefault(pool, []).append(share)
        return members

    def _plan_pool(
        self, pool: Pool, policy: ModelPolicy, members: tuple[_Share, ...]
    ) -> _PlannedPool:
        last = self._pools.get(pool)
        if last is not None and last.members == members:
            return last
        scale, engine_scale = _scales(members, policy)
        if last is not None and engine_scale is not None:
            engine_scale = _same(last.engine_scale, engine_scale)
        held = sum(share.held for share in members)
        plan = PoolPlan(
            pool=pool,
            balance=policy.balance,
            endpoints=() if scale is None else _endpoints(members, scale),
            slow_start_s=policy.slow_start_s if policy.balance == "latency" else 0.0,
            max_queue=policy.max_queue,
            edge_thresholds=edge_thresholds(held, policy.max_queue),
        )
        live = sum(share.live for share in members)
        return _PlannedPool(members, scale, engine_scale, live, plan)

    def _plan_node(self, node_id: str) -> _PlannedNode:
        last, examined = self._nodes.get(node_id), self._examined[node_id]
        scales = tuple([self._pools[pool].engine_scale for pool in examined.shares])
        if last is not None and last.examined is examined and last.scales == scales:
            return last
        engines = tuple(
            _plan_engine(node_id, item, self._pools[item.engine.pool].engine_scale)
            for item in examined.engines
        )
        node = examined.node
        plan = NodePlan(id=node.id, address=node.address, port=node.port, engines=engines)
        return _PlannedNode(examined, scales, plan)

    def _assemble(self, policy: Policy, problems: list[Problem]) -> Plan:
        by_model: dict[str, dict[Pool, float]] = {}
        for pool, item in self._pools.items():
            by_model.setdefault(pool.model, {})[pool] = item.live
        models: dict[str, ModelPlan] = {}
        pools: dict[Pool, PoolPlan] = {}
        for name in sorted({*by_model, *policy.models}):
            versions, model = by_model.get(name, {}), policy.model(name)
            routes, found = _plan_routes(name, versions, policy)
            problems += found
            for pool in {pool for pool, _ in routes} | set(versions):
                known = self._pools.get(pool) or self._plan_pool(pool, model, ())
                pools[pool] = known.plan
            planned = ModelPlan(
                model=name,
                routes=routes,
                balance=model.balance,
                generation_timeout_s=model.generation_timeout_s,
                request_limit=token_bucket(model.request_limit, sum(versions.values())),
                live=any(weight and pools[pool].endpoints for pool, weight in routes),
            )
            models[name] = _same(self._models.get(name), planned)
        self._models = models
        live = sum(item.live for item in self._pools.values())
        return Plan(
            models=tuple(models.values()),
            pools=tuple(pools[pool] for pool in sorted(pools)),
            nodes=tuple([planned.plan for planned in self._nodes.values()]),
            max_request_bytes=policy.max_request_bytes,
            retry_after_s=policy.retry_after_s,
            request_limit=token_bucket(policy.request_limit, live),
            problems=tuple(problems),
        )


def _scales(
    members: Sequence[_Share], policy: ModelPolicy
) -> tuple[WeightScale | None, WeightScale | None]:
    """Return the scales of a pool's nodes and of its engines, which share no cluster in Envoy."""
    if not members:
        return None, None
    engines = [capacity for share in members for capacity in share.capacities]
    weakest = min(engines)
    nodes = pool_scale(weakest, (sum(share.capacities) for share in members), policy.balance)
    return nodes, pool_scale(weakest, engines, policy.balance)


_Value = TypeVar("_Value")


def _same(old: _Value | None, new: _Value) -> _Value:
    """Return the old object when it is equal, so that later comparisons are quick."""
    return old if old is not None and old == new else new


def _power(engine: Engine, mix: Mix, reference: Capacity | None) -> float:
    if engine.power_source is not PowerSource.TABLE or not (engine.capacity and reference):
        return engine.gpu_power
    return relative_power(engine.capacity, mix, reference)


def _shares(node: Node, engines: Iterable[_Measured]) -> dict[Pool, _Share]:
    by_pool: dict[Pool, list[_Measured]] = {}
    for item in engines:
        by_pool.setdefault(item.engine.pool, []).append(item)
    return {
        pool: _Share(
            node=node.id,
            address=node.address,
            port=node.port,
            capacities=tuple([item.capacity for item in items]),
            live=sum(i.capacity for i in items if i.engine.state is EngineState.READY),
            held=sum(engine_limit(item.engine.max_num_seqs) for item in items),
        )
        for pool, items in by_pool.items()
    }


def _endpoints(members: Iterable[_Share], scale: WeightScale) -> tuple[NodeEndpoint, ...]:
    return tuple(
        NodeEndpoint(
            node=share.node,
            address=share.address,
            port=share.port,
            weight=scale.weight(share.live),
        )
        for share in members
        if share.live
    )


def _plan_engine(node_id: str, item: _Measured, scale: WeightScale | None) -> EnginePlan:
    engine, capacity = item.engine, item.engine.capacity
    ready = engine.state is EngineState.READY
    return EnginePlan(
        id=engine.id,
        node=node_id,
        engine=engine.name,
        pool=engine.pool,
        socket=engine.socket,
        state=engine.state,
        gpu=engine.gpu,
        gpu_count=engine.gpu_count,
        power_limit_w=engine.facts.power_limit_w if engine.facts else None,
        gpu_power=item.gpu_power,
        power_source=engine.power_source,
        capacity=item.capacity,
        prefill_tokens_per_s=capacity.prefill_tokens_per_s if capacity else None,
        decode_tokens_per_s=capacity.decode_tokens_per_s if capacity else None,
        weight=scale.weight(item.capacity) if ready and scale else 0,
        max_connections=engine_limit(engine.max_num_seqs),
        keep_alive_s=engine.keep_alive_s or ENGINE_KEEP_ALIVE_S,
    )


def _plan_routes(
    model: str, versions: Mapping[Pool, float], policy: Policy
) -> tuple[tuple[tuple[Pool, int], ...], list[Problem]]:
    """Return the split of a model over its versions, and versions that no split names.

    `versions` are the pools that have engines, with their live capacity.
    """
    stated = policy.model(model).versions
    if stated is None and len(versions) == 1:
        return tuple((pool, 1) for pool in versions), []  # power moves endpoints, not routes
    if stated is None:
        routes = {pool: _route_weight(live) for pool, live in versions.items()}
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


def _route_weight(live: float) -> int:
    """Return a version's live capacity as a route weight: at least 1, within uint32."""
    return min(max(1, round(live)), _MAX_ROUTE_WEIGHT)

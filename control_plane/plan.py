"""The plan: who gets which share of the traffic, and how much each engine and pool may hold.

Pure arithmetic over a fleet and a policy. Weights are whole numbers from 1 up; a pool that has no
live engine stays in the plan with no endpoint, because "empty" is not "deleted".
"""

from dataclasses import dataclass

from control_plane.errors import Problem
from control_plane.fleet import EngineState, Fleet, PowerSource
from control_plane.identity import Pool
from control_plane.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Circuit-breaker thresholds of one cluster and priority; every field at least 1."""

    max_connections: int
    max_pending_requests: int
    max_requests: int
    max_retries: int


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
    gpu_power: float
    power_source: PowerSource
    weight: int  # within its pool on its node; 0 means "gets nothing", and never reaches Envoy
    max_connections: int  # concurrent requests that the node Envoy lets into this engine
    keep_alive_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEndpoint:
    """One node as the edge sees it: weight = summed weight of its live engines of the pool."""

    node: str
    address: str
    port: int
    weight: int  # at least 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPlan:
    """One (model, version): its live endpoints and its breakers at the edge and at each node."""

    pool: Pool
    endpoints: tuple[NodeEndpoint, ...]  # live nodes only, sorted by node
    edge_thresholds: Thresholds


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
    aliases: tuple[str, ...]
    routes: tuple[tuple[Pool, int], ...]  # weights >= 0 with a sum >= 1, sorted by pool
    balance: str
    generation_timeout_s: float
    retry_after_s: int
    live: bool  # at least one endpoint in at least one routed pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that the Envoys are told, before it is put into their words."""

    models: tuple[ModelPlan, ...] = ()  # sorted by name
    pools: tuple[PoolPlan, ...] = ()  # sorted by pool
    nodes: tuple[NodePlan, ...] = ()  # sorted by ID
    max_request_bytes: int = 32 * 1024 * 1024
    problems: tuple[Problem, ...] = ()

    @property
    def engines(self) -> tuple[EnginePlan, ...]:
        """All engines of all nodes."""
        return tuple(engine for node in self.nodes for engine in node.engines)


def plan_fleet(fleet: Fleet, policy: Policy, now: float) -> Plan:
    """Return the plan at the time `now` (seconds since the epoch; unused until weights ramp)."""
    raise NotImplementedError

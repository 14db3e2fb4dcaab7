"""The plan: who gets which share of the traffic, and how much each engine and pool may hold.

Values only; `planner` makes them. Weights are whole numbers from 1 up; a pool that has no live
engine stays in the plan with no endpoint, because "empty" is not "deleted".
"""

from dataclasses import dataclass
from typing import Literal

from control_plane.errors import Problem
from control_plane.fleet import EngineState, PowerSource
from control_plane.identity import Pool
from control_plane.limits import TokenBucket
from control_plane.policy import Balance
from control_plane.thresholds import PoolThresholds

MeshTlsMode = Literal["accept", "use", "require"]


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
    power_limit_w: float | None  # of each GPU; None = unknown
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


@dataclass(frozen=True, slots=True)
class MeshTls:
    """How edges and nodes talk to each other: TLS, in the steps of a migration from plain HTTP/2.

    accept: nodes take both, edges send plain. use: nodes take both, edges send TLS. require: TLS
    alone.
    """

    mode: MeshTlsMode
    trust_domain: str
    trusted_ca: str  # PEM; during a rotation of the CA the old one and the new


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that the Envoys are told, before it is put into their words."""

    models: tuple[ModelPlan, ...] = ()  # sorted by name
    pools: tuple[PoolPlan, ...] = ()  # sorted by pool
    nodes: tuple[NodePlan, ...] = ()  # sorted by ID
    max_request_bytes: int = 32 * 1024 * 1024
    retry_after_s: int = 2
    request_limit: TokenBucket | None = None  # of all models together
    mesh_tls: MeshTls | None = None
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

"""The fleet: nodes and their engines with one relative power each.

Built from the catalog alone; policy comes later, in the plan.
"""

from dataclasses import dataclass
from enum import StrEnum

from control_plane.catalog import Catalog
from control_plane.errors import Problem
from control_plane.identity import Pool


class EngineState(StrEnum):
    """Where an engine stands. Only READY engines get new requests."""

    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    DOWN = "down"  # its check in Consul is critical


class PowerSource(StrEnum):
    """Where an engine's gpu_power comes from."""

    METADATA = "metadata"  # declared, wins
    TABLE = "table"  # derived from gpu_model and gpu_count
    DEFAULT = "default"  # nothing known: the documented default, flagged


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine of the fleet."""

    id: str  # "<node>.<engine>", unique in the fleet
    name: str  # unique on its node
    pool: Pool
    socket: str
    state: EngineState
    gpu: str | None  # the table's name of the GPU ("H100-SXM"), else the raw name, else None
    gpu_count: int | None
    gpu_power: float  # > 0; one A100-80GB = 100
    power_source: PowerSource
    max_num_seqs: int | None
    keep_alive_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One GPU host: a mesh listener and the engines behind it, sorted by name."""

    id: str
    address: str
    port: int
    engines: tuple[Engine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All nodes, sorted by ID."""

    nodes: tuple[Node, ...] = ()
    problems: tuple[Problem, ...] = ()


def build_fleet(catalog: Catalog) -> Fleet:
    """Return the fleet that a catalog describes; engines that contradict others are dropped."""
    raise NotImplementedError

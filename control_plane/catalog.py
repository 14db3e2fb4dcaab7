"""Consul's answer about the engines, as typed values.

The input is the JSON of `/v1/health/service/wattmesh-engine`: a list of {Node, Service, Checks}.
An entry that does not describe an engine is dropped with its problems; the others stay.
"""

from dataclasses import dataclass

from control_plane.errors import Problem
from control_plane.metadata import EngineMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One registered engine."""

    id: str  # Consul service ID, "<node>.<engine>", unique in the fleet
    node: str  # mesh node ID: the part of the ID before its last dot
    engine: str  # engine name on its node: the part after the last dot
    address: str  # of the node's mesh listener
    port: int
    metadata: EngineMetadata
    passing: bool  # False when any check is critical or the node is in maintenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All registered engines, sorted by ID, and what was wrong with those left out."""

    entries: tuple[CatalogEntry, ...] = ()
    problems: tuple[Problem, ...] = ()


def parse_catalog(data: bytes, *, source: str) -> Catalog:
    """Return the catalog. Raise InputError when the document is not a list of Consul entries."""
    raise NotImplementedError

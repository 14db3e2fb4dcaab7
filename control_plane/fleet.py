"""The fleet: nodes and their engines with one relative power each.

Built from the catalog alone; policy comes later, in the plan.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from control_plane.capacity import (
    DEFAULT_MIX,
    Capacity,
    GpuFacts,
    engine_capacity,
    find_gpu,
    reference_capacity,
    relative_power,
)
from control_plane.catalog import Catalog, CatalogEntry
from control_plane.errors import Problem
from control_plane.identity import Pool
from control_plane.metadata import EngineMetadata
from engines.compute_capability import ComputeCapability, parse_compute_capability
from engines.gpu import GpuTable

# One A100-80GB: a card of the middle of today's fleets, so that an unknown engine neither starves
# nor drowns. The engine is flagged until its GPU or its gpu_power is known.
DEFAULT_GPU_POWER = 100.0


class EngineState(StrEnum):
    """Where an engine stands. Only READY engines get new requests."""

    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    DOWN = "down"  # its check in Consul is critical
    EXCLUDED = "excluded"  # the policy asks for another GPU


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
    gpu_power: float  # > 0; one A100-80GB = 100; from the table: for the default mix
    power_source: PowerSource
    capacity: Capacity | None = None  # of its GPUs, where the table knows them
    facts: GpuFacts | None = None  # what the capacity follows from
    compute_capability: ComputeCapability | None = None
    declaration: str = ""  # all that the declared capacity follows from, in one line
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
    reference: Capacity | None = None  # of the card whose gpu_power is 100
    problems: tuple[Problem, ...] = ()


def build_fleet(catalog: Catalog, gpus: GpuTable) -> Fleet:
    """Return the fleet that a catalog describes; engines that contradict others are dropped."""
    return FleetBuilder(gpus).build(catalog)


class FleetBuilder:
    """Builds one fleet after the other; a node whose entries are the same stays the same object."""

    def __init__(self, gpus: GpuTable) -> None:
        self._cards = _Cards(gpus)
        self._built: dict[str, _Built] = {}

    def build(self, catalog: Catalog) -> Fleet:
        """Return the fleet, as `build_fleet` does."""
        by_node: dict[str, list[CatalogEntry]] = {}
        for entry in catalog.entries:
            by_node.setdefault(entry.node, []).append(entry)
        self._built = {
            node_id: self._build(node_id, by_node[node_id]) for node_id in sorted(by_node)
        }
        return _join(self._built, catalog, self._cards.reference)

    def _build(self, node_id: str, entries: list[CatalogEntry]) -> "_Built":
        last = self._built.get(node_id)
        if last is not None and last.entries == entries:
            return last
        node, problems = _build_node(node_id, entries, self._cards)
        return _Built(entries, node, problems)


@dataclass(frozen=True, slots=True)
class _Built:
    """A node and the entries that it was built from."""

    entries: list[CatalogEntry]
    node: Node
    problems: list[Problem]


def _join(built: Mapping[str, _Built], catalog: Catalog, reference: Capacity) -> Fleet:
    """Return the fleet of these nodes, without those whose listener is another's."""
    nodes: dict[tuple[str, int], Node] = {}
    problems = list(catalog.problems)
    for item in built.values():
        node = item.node
        problems += item.problems
        rival = nodes.setdefault((node.address, node.port), node)
        if rival is not node:
            expected = f"a listener of its own, not the one of {rival.id!r}"
            seen = f"{node.address}:{node.port}"
            problems += [_contradiction(entry, "address", seen, expected) for entry in item.entries]
    return Fleet(
        nodes=tuple(nodes.values()),
        reference=reference,
        problems=tuple(problems),
    )


def _build_node(
    node_id: str, entries: Sequence[CatalogEntry], cards: "_Cards"
) -> tuple[Node, list[Problem]]:
    """Return one node. Its listener is the one that most engines name (ties: the lowest)."""
    votes = Counter((entry.address, entry.port) for entry in entries)
    address, port = min(votes, key=lambda listener: (-votes[listener], listener))
    engines: list[Engine] = []
    problems: list[Problem] = []
    sockets: dict[str, str] = {}
    for entry in entries:
        socket = entry.metadata.socket
        if (entry.address, entry.port) != (address, port):
            seen = f"{entry.address}:{entry.port}"
            problems.append(
                _contradiction(entry, "address", seen, f"{address}:{port}, as the node's others")
            )
        elif socket in sockets:
            expected = f"a socket of its own, not the one of {sockets[socket]!r}"
            problems.append(_contradiction(entry, "socket", socket, expected))
        else:
            sockets[socket] = entry.id
            engine, found = _build_engine(entry, cards)
            engines.append(engine)
            problems += found
    node = Node(id=node_id, address=address, port=port, engines=tuple(engines))
    return node, problems


def _build_engine(entry: CatalogEntry, cards: "_Cards") -> tuple[Engine, list[Problem]]:
    metadata = entry.metadata
    facts, capacity, table_power = cards.look_up(metadata)
    power, source, problems = _power(entry, table_power)
    engine = Engine(
        id=entry.id,
        name=entry.engine,
        pool=Pool(metadata.model, metadata.version),
        socket=metadata.socket,
        state=EngineState(metadata.state) if entry.passing else EngineState.DOWN,
        gpu=facts.spec.name if facts else metadata.gpu_model,
        gpu_count=metadata.gpu_count,
        gpu_power=power,
        power_source=source,
        capacity=capacity,
        facts=facts,
        compute_capability=_compute_capability(metadata, facts),
        declaration=_declaration(metadata, power),
        max_num_seqs=metadata.max_num_seqs,
        keep_alive_s=metadata.keep_alive_s,
    )
    return engine, problems


def _declaration(metadata: EngineMetadata, power: float) -> str:
    parts = (
        metadata.model,
        metadata.version,
        metadata.gpu_model,
        metadata.gpu_count,
        metadata.tensor_parallel_size,
        metadata.gpu_power_limit_w,
        metadata.gpu_power_default_w,
        power,
    )
    return "|".join(["?" if part is None else f"{part}" for part in parts])


def _compute_capability(
    metadata: EngineMetadata, facts: GpuFacts | None
) -> ComputeCapability | None:
    """Return what the device says, else what the table says of such a card."""
    declared = parse_compute_capability(metadata.gpu_compute_capability)
    if declared is not None or facts is None:
        return declared
    return parse_compute_capability(facts.spec.compute_capability)


class _Cards:
    """The GPU table with what was looked up already: a fleet has few kinds of cards."""

    def __init__(self, gpus: GpuTable) -> None:
        self.reference = reference_capacity(gpus)
        self._gpus = gpus
        self._known: dict[_CardKey, _Card] = {}

    def look_up(self, metadata: EngineMetadata) -> "_Card":
        """Return facts, capacity and gpu_power of an engine's GPUs; None for those unknown."""
        key = (
            metadata.gpu_model,
            metadata.gpu_count or metadata.tensor_parallel_size or 1,
            metadata.gpu_power_limit_w,
            metadata.gpu_power_default_w,
        )
        if key not in self._known:
            self._known[key] = self._work_out(*key)
        return self._known[key]

    def _work_out(
        self, model: str | None, count: int, limit_w: float | None, default_w: float | None
    ) -> "_Card":
        if model is None:
            return None, None, None
        spec, compute_share, memory_share = find_gpu(self._gpus, model)
        if spec is None:
            return None, None, None
        facts = GpuFacts(
            spec=spec,
            count=count,
            compute_share=compute_share,
            memory_share=memory_share,
            power_limit_w=limit_w,
            power_default_w=default_w,
        )
        capacity = engine_capacity(facts)
        return facts, capacity, relative_power(capacity, DEFAULT_MIX, self.reference)


_CardKey = tuple[str | None, int, float | None, float | None]
_Card = tuple[GpuFacts | None, Capacity | None, float | None]


def _power(
    entry: CatalogEntry, table_power: float | None
) -> tuple[float, PowerSource, list[Problem]]:
    """Return gpu_power: what is declared wins, then the table, then the default, flagged."""
    metadata = entry.metadata
    if metadata.gpu_power is not None:
        return metadata.gpu_power, PowerSource.METADATA, []
    if table_power is not None:
        return table_power, PowerSource.TABLE, []
    problem = Problem(
        source="catalog",
        path=f"{entry.id}.gpu_model",
        value="missing" if metadata.gpu_model is None else repr(metadata.gpu_model),
        expected="a GPU of the table, or an explicit gpu_power",
        meanwhile=f"gpu_power is taken as {DEFAULT_GPU_POWER:g}",
    )
    return DEFAULT_GPU_POWER, PowerSource.DEFAULT, [problem]


def _contradiction(entry: CatalogEntry, key: str, value: str, expected: str) -> Problem:
    return Problem(
        source="catalog",
        path=f"{entry.id}.{key}",
        value=repr(value),
        expected=expected,
        meanwhile="the engine gets no traffic until it registers again",
    )

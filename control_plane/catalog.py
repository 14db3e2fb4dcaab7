"""Consul's answer about the engines, as typed values.

The input is the JSON of `/v1/health/service/wattmesh-engine`: a list of {Node, Service, Checks}.
An entry that does not describe an engine is dropped with its problems; the others stay.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from control_plane.errors import InputError, Problem, shown
from control_plane.metadata import EngineMetadata, address_fault, name_fault, parse_metadata

ENGINE_SERVICE = "wattmesh-engine"
_ENTRIES = msgspec.json.Decoder(list[msgspec.Raw])
_NO_TRAFFIC = "the engine gets no traffic until it registers again"


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
    return CatalogParser(source).parse(data)


class CatalogParser:
    """Parses one answer after the other; an entry with the same bytes stays the same object.

    Consul answers with all engines whenever one of them changed.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._known: dict[bytes, CatalogEntry] = {}  # of the last answer, and only the faultless

    def parse(self, data: bytes) -> Catalog:
        """Return the catalog, as `parse_catalog` does."""
        known: dict[bytes, CatalogEntry] = {}
        entries: dict[str, CatalogEntry] = {}
        problems: list[Problem] = []
        for index, raw in enumerate(self._split(data)):
            text = bytes(raw)
            entry = self._known.get(text)
            if entry is None:
                entry, found = _parse_entry(self._decode(text), self._source, f"[{index}]")
                problems += found
                if entry is None:
                    continue
                if not found:  # problems tell the entry's place, which may be another next time
                    known[text] = entry
            else:
                known[text] = entry
            rival = entries.get(entry.id)
            if rival is not None:
                problems.append(_duplicate(self._source, index, entry.id))
                entry = max(rival, entry, key=_preference)
            entries[entry.id] = entry
        self._known = known
        return Catalog(
            entries=tuple([entries[key] for key in sorted(entries)]),
            problems=tuple(sorted(problems, key=str)),
        )

    def _split(self, data: bytes) -> list[msgspec.Raw]:
        """Return the entries' texts, undecoded."""
        try:
            return _ENTRIES.decode(data)
        except msgspec.ValidationError as error:
            expected = f"the list that /v1/health/service/{ENGINE_SERVICE} answers"
            seen = shown(self._decode(data))
            raise InputError([_unreadable(self._source, seen, expected)]) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._no_json(data, error) from error

    def _decode(self, data: bytes) -> object:
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._no_json(data, error) from error

    def _no_json(self, data: bytes, error: Exception) -> InputError:
        return InputError([_unreadable(self._source, shown(data[:60]), f"JSON ({error})")])


def _preference(entry: CatalogEntry) -> tuple[bool, str]:
    """Order two entries of one ID: the live one wins, then any rule that ignores their order."""
    return entry.passing, repr(entry)


def _duplicate(source: str, index: int, entry_id: str) -> Problem:
    return Problem(
        source=source,
        path=f"[{index}].Service.ID",
        value=shown(entry_id),
        expected="an ID that no other engine has",
        meanwhile="one of the two stays in force, the live one if only one is",
    )


def _unreadable(source: str, value: str, expected: str) -> Problem:
    return Problem(
        source=source,
        path="document",
        value=value,
        expected=expected,
        meanwhile="the last good catalog stays in force",
    )


def _parse_entry(
    raw: object, source: str, path: str
) -> tuple[CatalogEntry | None, tuple[Problem, ...]]:
    """Return one engine and its problems; every problem of the entry is found, not the first."""
    node = _mapping(raw, "Node")
    service = _mapping(raw, "Service")
    problems: list[Problem] = []

    def report(where: str, value: object, expected: str) -> None:
        seen = "missing" if value is None or value == "" else shown(value)
        problems.append(
            Problem(
                source=source,
                path=f"{path}{where}",
                value=seen,
                expected=expected,
                meanwhile=_NO_TRAFFIC,
            )
        )

    if service is None:
        report("", raw, "an object with Node, Service and Checks")
        return None, tuple(problems)
    entry_id = service.get("ID")
    name = _text(entry_id)
    if name is None or name_fault(name):
        report(".Service.ID", entry_id, 'an ID of the form "<node>.<engine>"')
        name = ""
    node_id, engine = _split_id(name, _text((node or {}).get("Node")))
    if name and not (node_id and engine):
        report(".Service.ID", name, 'an ID of the form "<node>.<engine>"')
    address = _text(service.get("Address")) or _text((node or {}).get("Address"))
    fault = "the address of the node's listener" if address is None else address_fault(address)
    if fault:
        report(".Service.Address", address, fault)
    port = service.get("Port")
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
        report(".Service.Port", port, "a port from 1 to 65535")
    meta = service.get("Meta")
    if not isinstance(meta, Mapping) or not all(isinstance(v, str) for v in meta.values()):
        report(".Service.Meta", meta, "an object of strings")
        return None, tuple(problems)
    label = f"{path}({name}).Service.Meta" if name else f"{path}.Service.Meta"
    metadata, found = parse_metadata(meta, source=source, path=label)
    if problems or metadata is None or address is None or not isinstance(port, int):
        return None, (*problems, *found)
    entry = CatalogEntry(
        id=f"{node_id}.{engine}",
        node=node_id,
        engine=engine,
        address=address,
        port=port,
        metadata=metadata,
        passing=_passing(raw),
    )
    return entry, found


def _mapping(raw: object, key: str) -> Mapping[str, object] | None:
    value = raw.get(key) if isinstance(raw, Mapping) else None
    return value if isinstance(value, Mapping) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _split_id(service_id: str, node_name: str | None) -> tuple[str, str]:
    """Several mesh nodes may share one Consul agent, so the ID's own prefix names the node."""
    prefix, dot, engine = service_id.rpartition(".")
    return (prefix, engine) if dot else (node_name or "", service_id)


def _passing(raw: object) -> bool:
    """True unless a check is critical. Maintenance mode is a critical check in Consul."""
    checks = raw.get("Checks") if isinstance(raw, Mapping) else None
    if not isinstance(checks, list):
        return True
    return not any(isinstance(c, Mapping) and c.get("Status") == "critical" for c in checks)

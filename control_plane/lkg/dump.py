"""From an Envoy's admin answers to the resources that it has in force. Pure.

What Envoy 1.40 tells, and what it does not:

- Clusters, listeners and routes stand in /config_dump as they were received, with their versions.
- An extension's configuration stands there with its version, but as Envoy parsed it: a TypedStruct
  has become the real type, with fields that xds-protos may not know. It goes back into one.
- Endpoints are another matter: see `endpoints`.
- Runtime layers are in no dump. /runtime prints their values as text with six digits, so that a
  threshold above 999,999 comes back rounded.
- A secret that names files is printed with the files' content, and its private key as the word
  "[redacted]"; its watched directory says where the files are. Another secret with a private key
  cannot be recorded. Secrets of the bootstrap that come from files stand among the others.
- A cluster or listener that is warming is not in force, and is left out.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format

from control_plane.checks import secret_names
from control_plane.errors import WattmeshError, shown
from control_plane.lkg.endpoints import endpoints
from control_plane.lkg.world import Recorded, make_world
from control_plane.resources import messages
from control_plane.resources.mesh_tls import IDENTITY, own_certificate
from control_plane.snapshot import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    ROUTE,
    RUNTIME,
    SECRET,
    Snapshot,
)

Json = dict[str, Any]

_ADMIN = "type.googleapis.com/envoy.admin.v3."
_TYPED_STRUCT = f"{messages.TYPE}xds.type.v3.TypedStruct"


class DumpError(WattmeshError):
    """Answers of an Envoy that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminAnswers:
    """What an Envoy's admin API said, one path after the other."""

    config_dump: bytes  # /config_dump?include_eds
    clusters: bytes  # /clusters?format=json
    runtime: bytes  # /runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Dumped:
    """What an Envoy has in force."""

    world: Snapshot
    warming: bool  # something more is about to be in force


def parse_dump(answers: AdminAnswers) -> Dumped:
    """Return what is in force.

    Raise DumpError when the answers cannot be read, PayloadError when they are no whole
    configuration, as those of an Envoy that has just started.
    """
    try:
        dump = _sections(json.loads(answers.config_dump))
        received = tuple(_as_received(dump))
        recorded = [
            *received,
            *_endpoints(dump, json.loads(answers.clusters)),
            *_layers(dump, json.loads(answers.runtime)),
            *_extensions(dump),
            *_secrets(dump, received),
        ]
        warming = _is_warming(dump)
    except (ValueError, LookupError, TypeError, AttributeError, json_format.ParseError) as error:
        raise DumpError(
            f"Envoy's config dump: {type(error).__name__} {shown(str(error))}, expected that of "
            "Envoy 1.40; the last recorded configuration stays"
        ) from error
    return Dumped(world=make_world(recorded), warming=warming)


def _sections(config_dump: Json) -> dict[str, Json]:
    """Return the dump's parts by their short names; one that is not there is empty."""
    return {
        section["@type"].removeprefix(_ADMIN).removesuffix("ConfigDump"): section
        for section in config_dump["configs"]
    }


def _is_warming(dump: Mapping[str, Json]) -> bool:
    listeners = dump.get("Listeners", {}).get("dynamic_listeners", [])
    return bool(dump.get("Clusters", {}).get("dynamic_warming_clusters")) or any(
        "warming_state" in listener for listener in listeners
    )


def _as_received(dump: Mapping[str, Json]) -> Iterator[Recorded]:
    for item in dump.get("Clusters", {}).get("dynamic_active_clusters", []):
        yield _recorded(CLUSTER, item["cluster"], item)
    for item in dump.get("Listeners", {}).get("dynamic_listeners", []):
        if "active_state" in item:
            yield _recorded(LISTENER, item["active_state"]["listener"], item["active_state"])
    for item in dump.get("Routes", {}).get("dynamic_route_configs", []):
        yield _recorded(ROUTE, item["route_config"], item)


def _extensions(dump: Mapping[str, Json]) -> Iterator[Recorded]:
    """Yield each extension once, however many listeners use it."""
    filters = dump.get("Ecds", {}).get("ecds_filters", [])
    for item in {item["ecds_filter"]["name"]: item for item in filters}.values():
        value = dict(item["ecds_filter"])
        config = dict(value["typed_config"])
        if config["@type"] != _TYPED_STRUCT:
            value["typed_config"] = messages.typed_struct(config.pop("@type"), config)
        yield _recorded(EXTENSION, value, item)


def _secrets(dump: Mapping[str, Json], received: Iterable[Recorded]) -> Iterator[Recorded]:
    """Yield what clusters and listeners ask for; the bootstrap's own secrets come from files."""
    holders = [item.message for item in received if item.type_url in (CLUSTER, LISTENER)]
    wanted = {name for holder in holders for name in secret_names(holder)}
    for item in dump.get("Secrets", {}).get("dynamic_active_secrets", []):
        value = item["secret"]
        if value["name"] not in wanted:
            continue
        if "tls_certificate" in value:
            watched = value["tls_certificate"].get("watched_directory")
            if value["name"] != IDENTITY or watched is None:
                raise ValueError(f"secret {value['name']!r} holds a private key, not its file")
            value = {"@type": SECRET, **own_certificate(watched["path"])}
        yield _recorded(SECRET, value, item)


def _recorded(type_url: str, value: Json, versioned: Json) -> Recorded:
    return Recorded(type_url, messages.message(value), versioned.get("version_info") or None)


def _endpoints(dump: Mapping[str, Json], clusters: Json) -> Iterator[Recorded]:
    values = endpoints(dump.get("Clusters", {}), dump.get("Endpoints", {}), clusters)
    for value in values:
        yield Recorded(ENDPOINT, messages.message({"@type": ENDPOINT, **value}), None)


def _layers(dump: Mapping[str, Json], runtime: Json) -> Iterator[Recorded]:
    """Yield each runtime layer that comes from a control plane; one without a key is empty."""
    bootstrap = dump["Bootstrap"]["bootstrap"]
    for layer in bootstrap.get("layered_runtime", {}).get("layers", []):
        if "rtds_layer" not in layer:
            continue
        index = runtime["layers"].index(layer["name"])
        texts = {key: entry["layer_values"][index] for key, entry in runtime["entries"].items()}
        values = {key: _value(text) for key, text in sorted(texts.items()) if text}
        yield Recorded(RUNTIME, messages.runtime(layer["rtds_layer"]["name"], values), None)


def _value(text: str) -> float | bool | str:
    if text in ("true", "false"):
        return text == "true"
    with contextlib.suppress(ValueError):
        return float(text)
    return text

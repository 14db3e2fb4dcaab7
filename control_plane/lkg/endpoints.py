"""From an Envoy's own hosts back to the endpoints that it was sent. Pure.

Envoy 1.40 prints the endpoints of its config dump (include_eds) from the hosts that it has:

- There is no version; the control plane's is the hash of the content, so equal content has it.
- `health_status` is what its health checks and outlier detection found. It must not be frozen, and
  is dropped. What the control plane had said (DRAINING) is only in /clusters, `eds_health_status`.
- Unset weights are printed as 1, a locality's as 0; empty localities and policies in full.
- Hosts that were removed and are kept until they fail a health check are marked in /clusters.
- Hosts come in the order in which they were sent; Envoy ignores a change of the order alone.
- Endpoints of clusters that are no EDS clusters are listed, too; those of an EDS cluster of the
  bootstrap stand among the static ones.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

_SAID_NOTHING = frozenset({"HEALTHY", "UNKNOWN"})  # of eds_health_status
_DEFAULT_POLICY = {"overprovisioning_factor": 140}


def endpoints(clusters_dump: Json, endpoints_dump: Json, clusters: Json) -> Iterator[Json]:
    """Yield the ClusterLoadAssignment of each EDS cluster, once for all clusters that share it.

    The first two are sections of the config dump, the third is the answer of /clusters.
    """
    hosts = _hosts(clusters)
    for kind, listed in (("static", "static_clusters"), ("dynamic", "dynamic_active_clusters")):
        wanted = set(_eds_names(item["cluster"] for item in clusters_dump.get(listed, [])))
        for item in endpoints_dump.get(f"{kind}_endpoint_configs", []):
            config = item["endpoint_config"]
            if config["cluster_name"] in wanted:
                wanted.discard(config["cluster_name"])
                yield _assignment(config, hosts)


@dataclass(frozen=True, slots=True)
class _Host:
    """What /clusters says of a host beside its address."""

    said_health: str | None  # by the control plane; None: nothing
    removed: bool  # and kept until it fails a health check


def _hosts(clusters: Json) -> dict[tuple[str, str], _Host]:
    """Return the hosts by the name of their endpoints and their address."""
    return {
        (status.get("eds_service_name") or status["name"], _key(host["address"])): _host(
            host.get("health_status", {})
        )
        for status in clusters.get("cluster_statuses", [])
        for host in status.get("host_statuses", [])
    }


def _host(health: Json) -> _Host:
    said = health.get("eds_health_status", "UNKNOWN")
    return _Host(
        said_health=None if said in _SAID_NOTHING else said,
        removed=bool(health.get("pending_dynamic_removal")),
    )


def _key(address: Json) -> str:
    return json.dumps(address, sort_keys=True)


def _eds_names(clusters: Iterable[Json]) -> Iterator[str]:
    for cluster in clusters:
        if cluster.get("type") == "EDS":
            yield cluster.get("eds_cluster_config", {}).get("service_name") or cluster["name"]


def _assignment(config: Json, hosts: Mapping[tuple[str, str], _Host]) -> Json:
    """Return endpoints as they were sent, from Envoy's account of its hosts."""
    name = config["cluster_name"]
    localities = [_locality(name, item, hosts) for item in config.get("endpoints", [])]
    kept = [locality for locality in localities if locality["lb_endpoints"]]
    members = [host for locality in kept for host in locality["lb_endpoints"]]
    if all(host["load_balancing_weight"] == 1 for host in members):  # what unset means
        for host in members:
            del host["load_balancing_weight"]
    value: Json = {"cluster_name": name, "endpoints": kept}
    if config.get("policy", _DEFAULT_POLICY) != _DEFAULT_POLICY:
        value["policy"] = config["policy"]
    return value


def _locality(name: str, locality: Json, hosts: Mapping[tuple[str, str], _Host]) -> Json:
    value = {
        field: locality[field]
        for field in ("locality", "priority", "load_balancing_weight")
        if locality.get(field)  # empty or 0 is what unset is printed as
    }
    members = []
    for item in locality.get("lb_endpoints", []):
        host = hosts.get((name, _key(item["endpoint"]["address"])), _Host(None, removed=False))
        if not host.removed:
            members.append(_member(item, host.said_health))
    return {**value, "lb_endpoints": members}


def _member(item: Json, said_health: str | None) -> Json:
    endpoint = {field: value for field, value in item["endpoint"].items() if value}
    value: Json = {
        "endpoint": endpoint,
        "load_balancing_weight": item.get("load_balancing_weight", 1),
    }
    if item.get("metadata"):
        value["metadata"] = item["metadata"]
    if said_health is not None:
        value["health_status"] = said_health
    return value

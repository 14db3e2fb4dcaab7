"""The cluster of an Envoy's bootstrap in which its control planes and its local cache are.

One endpoint is used as it is. Of several, Envoy asks each for its health and opens its stream to
one that has something to serve: priority 0 are the control planes, priority 1 the cache. Any
healthy control plane carries the whole of priority 0, and with nothing healthy the stream fails at
once and is tried again within a second; Envoy's defaults would spread it over the dead, or over
the cache. What was learnt from Envoy 1.40 itself:

- a STRICT_DNS cluster takes a Unix socket without a word and then lacks the endpoint;
- an aggregate cluster serves ADS, but is initialised only after the runtime layers, so that each
  would wait its 15 s for the other. Names with a cache go this way, with a short wait instead;
- close_connections_on_host_health_failure ends no stream: one that hangs with its process is
  ended by the connection's keep-alive, within 15 s;
- Envoy's own failover between two ADS sources (xds_failover_support, experimental) never leaves a
  control plane that it once had, and took 10 s to find the cache.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from control_plane.addresses import AddressError, HostPort, UnixSocket, parse_address

Json = dict[str, Any]
Address = UnixSocket | HostPort

NAME = "control_plane"
LKG_SOCKET = "xds.sock"  # of a last-known-good cache, in its directory
# A check costs a control plane 0.3 ms of its one core, so 2,000 Envoys that asked each second would
# take more than half of it. Whoever dies loses its stream at once, long before the next check; what
# is found late is only that another one died, and then the next attempt, within a second, goes on.
_HEALTH_CHECK: Json = {
    "timeout": "1s",
    "interval": "5s",
    "no_traffic_interval": "1s",  # until a first stream is open
    "unhealthy_interval": "1s",
    "interval_jitter": "0.5s",
    "healthy_threshold": 1,
    "unhealthy_threshold": 1,
    "grpc_health_check": {},
}
_ANY_CARRIES_ALL = 100_000  # per cent of its share that a healthy endpoint may take over


def control_plane_clusters(
    template: Json, addresses: Sequence[Address], lkg: str | None
) -> list[Json]:
    """Return the clusters; the first is the one that ADS uses.

    `lkg` is the directory of a last-known-good cache. Raise AddressError for no address, and for
    host names beside Unix sockets.
    """
    _check(addresses)
    if lkg is None:
        return [_cluster(template, NAME, [addresses], watched=len(addresses) > 1)]
    cache = parse_address(f"unix:{Path(lkg) / LKG_SOCKET}")
    if not _has_names(addresses):
        return [_cluster(template, NAME, [addresses, [cache]], watched=True)]
    primary, last = f"{NAME}_primary", f"{NAME}_lkg"
    return [
        _aggregate(template, (primary, last)),
        _cluster(template, primary, [addresses], watched=True),
        _cluster(template, last, [[cache]], watched=True),
    ]


def come_after_runtime(clusters: Sequence[Json]) -> bool:
    """Whether Envoy can use these clusters only once it has its runtime layers, or gave up."""
    return "cluster_type" in clusters[0]


def _check(addresses: Sequence[Address]) -> None:
    if not addresses:
        raise AddressError("no xDS address: expected at least one control plane")
    sockets = [address for address in addresses if isinstance(address, UnixSocket)]
    if sockets and _has_names(addresses):
        shown = ", ".join(str(address) for address in addresses)
        raise AddressError(
            f"xDS addresses {shown}: expected no host name beside a Unix socket, since no cluster "
            "of Envoy holds both; give the control planes by IP address"
        )


def _has_names(addresses: Sequence[Address]) -> bool:
    return any(isinstance(address, HostPort) and not address.is_ip for address in addresses)


def _cluster(
    template: Json, name: str, groups: Sequence[Sequence[Address]], *, watched: bool
) -> Json:
    """Return a cluster with these groups of endpoints by priority, watched for their health."""
    cluster = copy.deepcopy(template)
    cluster["name"] = cluster["load_assignment"]["cluster_name"] = name
    cluster["type"] = "STRICT_DNS" if any(map(_has_names, groups)) else "STATIC"
    cluster["load_assignment"]["endpoints"] = [
        {
            **({"priority": priority} if priority else {}),
            "lb_endpoints": [{"endpoint": {"address": _address(item)}} for item in group],
        }
        for priority, group in enumerate(groups)
    ]
    if not watched:
        return cluster
    cluster["lb_policy"] = "RANDOM"  # Envoys that start together do not meet at one replica
    cluster["health_checks"] = [_HEALTH_CHECK]
    cluster["common_lb_config"] = {"healthy_panic_threshold": {"value": 0}}
    cluster["load_assignment"]["policy"] = {"overprovisioning_factor": _ANY_CARRIES_ALL}
    if cluster["type"] == "STRICT_DNS":
        cluster["dns_lookup_family"] = "ALL"  # what does not answer is found unhealthy
    return cluster


def _aggregate(template: Json, names: Sequence[str]) -> Json:
    return {
        "name": NAME,
        "connect_timeout": template["connect_timeout"],
        "lb_policy": "CLUSTER_PROVIDED",
        "typed_extension_protocol_options": template["typed_extension_protocol_options"],
        "cluster_type": {
            "name": "envoy.clusters.aggregate",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig",
                "clusters": list(names),
            },
        },
    }


def _address(address: Address) -> Json:
    if isinstance(address, UnixSocket):
        return {"pipe": {"path": address.path}}
    return {"socket_address": {"address": address.host, "port_value": address.port}}

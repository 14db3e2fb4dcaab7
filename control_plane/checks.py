"""Our own payload checks: what Envoy would refuse, or accept and then fail on.

xds-protos brings no validators, so the rules that matter are here. A violation names the resource,
the value and what was expected; all violations of a set are returned, never the first alone.
Addresses given twice are refused here, since Envoy would quietly take the first: the fleet drops
the second claim and says so before it comes to this.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from envoy.config.cluster.v3 import cluster_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2

from control_plane.metadata import socket_path_fault
from control_plane.resources.request_limits import EDGES
from control_plane.resources.view import Resources

_EDS = cluster_pb2.Cluster.EDS
_UINT32_MAX = 2**32 - 1
_MAX_PRIORITY = 128  # highest number; 0 is the first
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_DEFAULT, _HIGH = 0, 1  # envoy.config.core.v3.RoutingPriority
_PRIORITY_NAMES = {_DEFAULT: "DEFAULT", _HIGH: "HIGH"}
_THRESHOLD_FIELDS = ("max_connections", "max_pending_requests", "max_requests", "max_retries")


def check_resources(resources: Resources) -> tuple[str, ...]:
    """Return every violation in a set of resources; none means that it may be published."""
    groups = (resources.clusters, resources.endpoints, resources.routes, resources.runtimes)
    by_message = [text for group in groups for message in group for text in check_message(message)]
    return (*by_message, *check_set(resources))


def check_message(message: Any) -> tuple[str, ...]:
    """Return every violation within one resource."""
    check = _CHECKS.get(message.DESCRIPTOR.name)
    return () if check is None else tuple(check(message))


def check_set(resources: Resources) -> tuple[str, ...]:
    """Return every violation between the resources of a set."""
    violations: list[str] = []
    for kind, names in _names(resources).items():
        violations += _check_names(kind, names)
    violations += _check_references(resources)
    violations += _check_secrets(resources)
    violations += _check_locality_weights(resources)
    return tuple(violations)


def _names(resources: Resources) -> dict[str, list[str]]:
    return {
        "cluster": [cluster.name for cluster in resources.clusters],
        "endpoints": [assignment.cluster_name for assignment in resources.endpoints],
        "listener": [listener.name for listener in resources.listeners],
        "routes": [routes.name for routes in resources.routes],
        "runtime layer": [layer.name for layer in resources.runtimes],
        "extension": [extension.name for extension in resources.extensions],
        "secret": [secret.name for secret in resources.secrets],
    }


def _check_names(kind: str, names: list[str]) -> Iterator[str]:
    yield from (f"{kind} {name!r} is given twice" for name in _repeated(names))
    for name in sorted({"", "*"} & set(names)):
        yield f"{kind} {name!r}: the name is {name!r}, expected one that is not a wildcard"


def _repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)


def _check_cluster(cluster: Any) -> Iterator[str]:
    where = f"cluster {cluster.name!r}"
    connect_timeout_s = cluster.connect_timeout.ToTimedelta().total_seconds()
    if connect_timeout_s <= 0:
        yield f"{where}: connect_timeout is {connect_timeout_s:g} s, expected above 0"
    priorities = sorted(threshold.priority for threshold in cluster.circuit_breakers.thresholds)
    if priorities != [_DEFAULT, _HIGH]:
        seen = ", ".join(_PRIORITY_NAMES[priority] for priority in priorities) or "none"
        yield f"{where}: circuit-breaker thresholds are for {seen}, expected DEFAULT and HIGH"
    for threshold in cluster.circuit_breakers.thresholds:
        for field in _THRESHOLD_FIELDS:
            found = getattr(threshold, field).value if threshold.HasField(field) else "unset"
            if found in ("unset", 0):
                priority = _PRIORITY_NAMES[threshold.priority]
                shown = f"{priority} circuit-breaker {field} is {found}"
                yield f"{where}: {shown}, expected at least 1"
    yield from _check_keep_alive(cluster, where)
    if cluster.HasField("load_assignment"):
        yield from _check_assignment(cluster.load_assignment)


def _check_keep_alive(cluster: Any, where: str) -> Iterator[str]:
    """An idle connection must be closed by Envoy before the engine closes it."""
    declared = cluster.metadata.filter_metadata.get("wattmesh")
    if declared is None or "keep_alive_s" not in declared:
        return
    keep_alive_s = declared["keep_alive_s"]
    if not isinstance(keep_alive_s, float) or not keep_alive_s > 0:
        yield f"{where}: metadata keep_alive_s is {keep_alive_s!r}, expected seconds above 0"
        return
    idle_s = upstream_idle_timeout_s(cluster)
    if idle_s is None or not 0 < idle_s < keep_alive_s:  # 0 means "never" to Envoy
        shown = "unset" if idle_s is None else f"{idle_s:g} s"
        yield f"{where}: idle_timeout is {shown}, expected below the engine's {keep_alive_s:g} s"


def upstream_idle_timeout_s(cluster: Any) -> float | None:
    """Return the idle time-out (seconds) of a cluster's connections, None when it is unset."""
    packed = cluster.typed_extension_protocol_options.get(_HTTP_OPTIONS)
    if packed is None:
        return None
    options = http_protocol_options_pb2.HttpProtocolOptions()
    packed.Unpack(options)
    if not options.common_http_protocol_options.HasField("idle_timeout"):
        return None
    idle_timeout = options.common_http_protocol_options.idle_timeout
    return float(idle_timeout.ToTimedelta().total_seconds())


def _check_assignment(assignment: Any) -> Iterator[str]:
    where = f"endpoints {assignment.cluster_name!r}"
    hosts = [host for locality in assignment.endpoints for host in locality.lb_endpoints]
    addresses = [_address(host) for host in hosts]
    yield from (f"{where}: {address} is listed twice" for address in _repeated(addresses))
    weighted = sum(host.HasField("load_balancing_weight") for host in hosts)
    if weighted not in (0, len(hosts)):
        yield f"{where}: {weighted} of {len(hosts)} endpoints have a weight, expected all or none"
    for locality in assignment.endpoints:
        yield from _check_hosts(locality.lb_endpoints, where)
    yield from _check_localities(assignment.endpoints, where)


def _address(host: Any) -> str:
    address = host.endpoint.address
    if address.WhichOneof("address") == "pipe":
        return f"unix:{address.pipe.path}"
    return f"{address.socket_address.address}:{address.socket_address.port_value}"


def _check_hosts(hosts: Iterable[Any], where: str) -> Iterator[str]:
    total = 0
    for host in hosts:
        weight = host.load_balancing_weight.value
        if host.HasField("load_balancing_weight") and weight < 1:
            yield f"{where}: the weight of {_address(host)} is {weight}, expected at least 1"
        total += weight or 1
        if host.endpoint.address.WhichOneof("address") == "pipe":
            fault = socket_path_fault(host.endpoint.address.pipe.path)
            if fault:
                yield f"{where}: socket {host.endpoint.address.pipe.path!r}, expected {fault}"
    if total > _UINT32_MAX:
        yield f"{where}: weights of a locality sum to {total}, expected at most {_UINT32_MAX}"


def _check_localities(localities: Iterable[Any], where: str) -> Iterator[str]:
    weights: Counter[int] = Counter()
    seen: Counter[tuple[int, str]] = Counter()
    for locality in localities:
        seen[locality.priority, str(locality.locality)] += 1
        if locality.HasField("load_balancing_weight"):
            weights[locality.priority] += locality.load_balancing_weight.value
            if locality.load_balancing_weight.value < 1:
                yield f"{where}: a locality's weight is 0, expected at least 1"
    if any(times > 1 for times in seen.values()):
        yield f"{where}: a locality is given twice in one priority, expected once"
    for priority, total in sorted(weights.items()):
        if total > _UINT32_MAX:
            what = f"locality weights of priority {priority} sum to {total}"
            yield f"{where}: {what}, expected at most {_UINT32_MAX}"
    priorities = sorted({priority for priority, _ in seen})
    if priorities != list(range(len(priorities))) or len(priorities) > _MAX_PRIORITY + 1:
        shown = priorities if len(priorities) <= 10 else f"{len(priorities)} different"
        yield f"{where}: priorities are {shown}, expected 0 to {_MAX_PRIORITY} without a gap"


def _check_routes(routes: Any) -> Iterator[str]:
    for host in routes.virtual_hosts:
        for route in host.routes:
            split = route.route.weighted_clusters.clusters
            total = sum(part.weight.value for part in split)
            if split and not 1 <= total <= _UINT32_MAX:
                names = ", ".join(part.name for part in split)
                expected = f"expected 1 to {_UINT32_MAX}"
                yield f"routes {routes.name!r}: weights of {names} sum to {total}, {expected}"


def _check_runtime(layer: Any) -> Iterator[str]:
    for key, value in sorted(layer.layer.items()):
        if not (isinstance(value, float) and value >= 1 and value.is_integer()):
            where = f"runtime layer {layer.name!r}"
            yield f"{where}: {key} is {value!r}, expected a whole number of at least 1"


def _check_locality_weights(resources: Resources) -> Iterator[str]:
    """Under locality-weighted balancing a locality without a weight gets no traffic."""
    weighted = {
        eds_name(cluster)
        for cluster in resources.clusters
        if cluster.common_lb_config.HasField("locality_weighted_lb_config")
    }
    for assignment in resources.endpoints:
        if assignment.cluster_name in weighted and not all(
            locality.HasField("load_balancing_weight") for locality in assignment.endpoints
        ):
            where = f"endpoints {assignment.cluster_name!r}"
            yield f"{where}: a locality's weight is unset, expected one for locality weighting"


def _check_references(resources: Resources) -> Iterator[str]:
    clusters = {cluster.name for cluster in resources.clusters}
    assignments = {assignment.cluster_name for assignment in resources.endpoints}
    wanted = {eds_name(c) for c in resources.clusters if c.type == _EDS}
    assignments.discard(EDGES)  # of a cluster in the bootstrap
    yield from (f"cluster {name!r} has no endpoints" for name in sorted(wanted - assignments))
    yield from (f"endpoints {name!r} have no cluster" for name in sorted(assignments - wanted))
    for routes in resources.routes:
        missing = sorted(set(_route_clusters(routes)) - clusters)
        yield from (f"routes {routes.name!r}: cluster {name!r} is missing" for name in missing)
    served = {routes.name for routes in resources.routes}
    extensions = {extension.name for extension in resources.extensions}
    for listener in resources.listeners:
        missing = sorted(set(_rds_names(listener)) - served)
        yield from (f"listener {listener.name!r}: routes {name!r} are missing" for name in missing)
        missing = sorted(set(_extension_names(listener)) - extensions)
        yield from (
            f"listener {listener.name!r}: extension {name!r} is missing" for name in missing
        )


def _check_secrets(resources: Resources) -> Iterator[str]:
    """What names a secret that never comes would warm for ever."""
    served = {secret.name for secret in resources.secrets}
    for kind, holders in (("cluster", resources.clusters), ("listener", resources.listeners)):
        for holder in holders:
            for name in sorted(set(secret_names(holder)) - served):
                yield f"{kind} {holder.name!r}: secret {name!r} is missing"


def secret_names(holder: Any) -> Iterator[str]:
    """Return the secrets that a cluster or a listener asks for; static ones are not asked for."""
    for context in _tls_contexts(holder):
        common = context.common_tls_context
        configs = [*common.tls_certificate_sds_secret_configs]
        configs.append(common.validation_context_sds_secret_config)
        configs.append(common.combined_validation_context.validation_context_sds_secret_config)
        yield from (config.name for config in configs if config.HasField("sds_config"))


def _tls_contexts(holder: Any) -> Iterator[Any]:
    chains = getattr(holder, "filter_chains", None)
    sockets = [holder.transport_socket] if chains is None else [c.transport_socket for c in chains]
    for socket in sockets:
        for context in (tls_pb2.UpstreamTlsContext(), tls_pb2.DownstreamTlsContext()):
            if socket.typed_config.Unpack(context):
                yield context


def eds_name(cluster: Any) -> str:
    """Return the name under which an EDS cluster asks for its endpoints."""
    return str(cluster.eds_cluster_config.service_name or cluster.name)


def _route_clusters(routes: Any) -> Iterator[str]:
    for host in routes.virtual_hosts:
        for route in host.routes:
            if route.route.cluster:
                yield route.route.cluster
            yield from (part.name for part in route.route.weighted_clusters.clusters)


def _rds_names(listener: Any) -> Iterator[str]:
    for manager in _managers(listener):
        if manager.HasField("rds"):
            yield manager.rds.route_config_name


def _extension_names(listener: Any) -> Iterator[str]:
    for manager in _managers(listener):
        for http_filter in manager.http_filters:
            if http_filter.HasField("config_discovery"):
                yield http_filter.name


def _managers(listener: Any) -> Iterator[Any]:
    for chain in (*listener.filter_chains, listener.default_filter_chain):
        for network_filter in chain.filters:
            manager = http_connection_manager_pb2.HttpConnectionManager()
            if network_filter.typed_config.Unpack(manager):
                yield manager


_CHECKS: Mapping[str, Callable[[Any], Iterator[str]]] = MappingProxyType(
    {
        "Cluster": _check_cluster,
        "ClusterLoadAssignment": _check_assignment,
        "RouteConfiguration": _check_routes,
        "Runtime": _check_runtime,
    }
)

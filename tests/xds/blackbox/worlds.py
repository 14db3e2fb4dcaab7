"""Small worlds, each consistent in itself: what a server checks before it serves is in order.

A resource has a name and a version, a whole number from 1; another version is another content.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2, tls_pb2
from envoy.service.runtime.v3 import rtds_pb2

from tests.support.xds_wire import (
    CLUSTER,
    ENDPOINT,
    EXTENSION,
    LISTENER,
    ROUTE,
    RUNTIME,
    SECRET,
    messages,
    name_of,
)
from tests.xds.blackbox.seam import World

PROBES = tuple(f"probe-{index}" for index in range(8))  # layers that every world holds


def cluster(name: str, version: int = 1, *, service_name: str = "") -> Any:
    """Return a cluster that gets its endpoints by ADS."""
    message = cluster_pb2.Cluster(name=name, type=cluster_pb2.Cluster.EDS)
    message.connect_timeout.FromSeconds(version)
    message.eds_cluster_config.service_name = service_name
    message.eds_cluster_config.eds_config.ads.SetInParent()
    for priority in (0, 1):
        threshold = message.circuit_breakers.thresholds.add(priority=priority)
        for field in ("max_connections", "max_pending_requests", "max_requests", "max_retries"):
            getattr(threshold, field).value = 1
    return message


def endpoints(name: str, version: int = 1) -> Any:
    """Return one endpoint, whose weight is the version."""
    message = no_endpoints(name)
    host = message.endpoints.add().lb_endpoints.add()
    host.endpoint.address.pipe.path = "/run/engine.sock"
    host.load_balancing_weight.value = version
    return message


def no_endpoints(name: str) -> Any:
    """Return the endpoints of a cluster that has none."""
    return endpoint_pb2.ClusterLoadAssignment(cluster_name=name)


def listener(name: str, version: int = 1, *, routes_name: str = "") -> Any:
    """Return a listener, which asks for its routes by ADS when a name is given."""
    message = listener_pb2.Listener(name=name)
    message.address.pipe.path = f"/run/{name}.sock"
    message.per_connection_buffer_limit_bytes.value = version
    if routes_name:
        manager = http_connection_manager_pb2.HttpConnectionManager(stat_prefix=name)
        manager.rds.route_config_name = routes_name
        manager.rds.config_source.ads.SetInParent()
        manager.http_filters.add(name="router").typed_config.Pack(router_pb2.Router())
        message.filter_chains.add().filters.add(name="http").typed_config.Pack(manager)
    return message


def routes(name: str, version: int = 1, *, to: str = "") -> Any:
    """Return routes to a cluster, or that answer by themselves."""
    message = route_pb2.RouteConfiguration(name=name)
    host = message.virtual_hosts.add(name=f"v{version}", domains=["*"])
    route = host.routes.add()
    route.match.prefix = "/"
    if to:
        route.route.cluster = to
    else:
        route.direct_response.status = 200
    return message


def layer(name: str, version: int = 1) -> Any:
    """Return a runtime layer."""
    message = rtds_pb2.Runtime(name=name)
    message.layer.update({"blackbox.version": version})
    return message


def extension(name: str, version: int = 1) -> Any:
    """Return an extension's configuration."""
    message = extension_pb2.TypedExtensionConfig(name=name)
    message.typed_config.Pack(router_pb2.Router(suppress_envoy_headers=version % 2 == 0))
    return message


def secret(name: str, version: int = 1) -> Any:
    """Return a bundle of CAs."""
    message = secret_pb2.Secret(name=name)
    message.validation_context.trusted_ca.inline_string = f"PEM {version}"
    return message


def tls_cluster(name: str, version: int = 1, *, trusts: str) -> Any:
    """Return a cluster that warms until it has a secret, which it asks for by ADS."""
    message = cluster(name, version)
    context = tls_pb2.UpstreamTlsContext()
    config = context.common_tls_context.validation_context_sds_secret_config
    config.name = trusts
    config.sds_config.ads.SetInParent()
    message.transport_socket.name = "tls"
    message.transport_socket.typed_config.Pack(context)
    return message


BUILDERS = {
    CLUSTER: cluster,
    ENDPOINT: endpoints,
    LISTENER: listener,
    ROUTE: routes,
    RUNTIME: layer,
    EXTENSION: extension,
    SECRET: secret,
}


def world(*contents: Any) -> World:
    """Return the world that holds these resources, and the probes."""
    resources: dict[str, dict[str, Any]] = {type_url: {} for type_url in BUILDERS}
    for message in (*contents, *map(layer, PROBES)):
        resources[f"type.googleapis.com/{message.DESCRIPTOR.full_name}"][name_of(message)] = message
    return resources


def world_of(type_url: str, versions: Mapping[str, int] | None = None, **more: int) -> World:
    """Return a world of resources of one type by name and version, and what they must go with."""
    wanted = {**(versions or {}), **more}
    contents = [BUILDERS[type_url](name, version) for name, version in wanted.items()]
    return world(*contents, *_companions(type_url, wanted))


def _companions(type_url: str, names: Iterable[str]) -> Iterator[Any]:
    if type_url == CLUSTER:
        yield from map(endpoints, names)
    if type_url == ENDPOINT:
        yield from map(cluster, names)


def contents_of(responses: Iterable[Any], type_url: str) -> list[Any]:
    """Return all resources of a type in several responses, in their order."""
    return [
        message
        for response in responses
        if response.type_url == type_url
        for message in messages(response)
    ]

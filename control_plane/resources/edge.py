"""The edge's view: models become routes, pools become clusters, nodes become endpoints."""

from control_plane.plan import MeshTls, Plan, PoolPlan
from control_plane.resources.clusters import least_request, pool_cluster
from control_plane.resources.edge_routes import METADATA_NAMESPACE, edge_route_configuration
from control_plane.resources.http import http_connection_manager
from control_plane.resources.memo import Memo
from control_plane.resources.mesh_tls import mesh_secrets, takes_part, to_nodes
from control_plane.resources.messages import (
    TYPE,
    ClusterLoadAssignment,
    Json,
    cluster,
    listener,
    route_configuration,
    seconds,
)
from control_plane.resources.openai_errors import NO_ENGINE_HEADER
from control_plane.resources.request_limits import (
    edges_assignment,
    request_limit_filter,
    request_limits,
)
from control_plane.resources.runtime import runtime_layer
from control_plane.resources.view import Resources, View
from control_plane.thresholds import EDGE_FALLBACK

EDGE = "edge"  # names the listener, its routes and its statistics
CERTIFICATE = "edge-certificate"  # the static secret of the edge's bootstrap
_KEEPALIVE_INTERVAL_S = 10.0
_KEEPALIVE_TIMEOUT_S = 5.0


def build_edge(plan: Plan, view: View, memo: Memo) -> Resources:
    """Return an edge's resources."""
    tls = plan.mesh_tls if plan.mesh_tls and takes_part(plan.mesh_tls, view) else None
    pools = sorted(plan.pools, key=_cluster_name)
    names = {_cluster_name(pool) for pool in pools}
    for kind in ("cluster", "endpoints"):
        memo.keep(kind, names)
    return Resources(
        clusters=tuple(_pool_cluster(pool, tls, memo) for pool in pools),
        endpoints=(*(_pool_endpoints(pool, memo) for pool in pools), edges_assignment(plan.edges)),
        listeners=(listener(_listener(plan, view)),),
        routes=(memo.get("routes", EDGE, plan.models, lambda: _routes(plan)),),
        runtimes=(runtime_layer({pool.pool.cluster: pool.edge_thresholds for pool in plan.pools}),),
        extensions=(request_limits(plan),),
        secrets=mesh_secrets(plan.mesh_tls, view),
    )


def _pool_cluster(pool: PoolPlan, tls: MeshTls | None, memo: Memo) -> object:
    """Return a pool's cluster. A rotated CA changes the secret that it names, not the cluster."""
    inputs = pool.balance, pool.slow_start_s, tls.trust_domain if tls else None
    return memo.get("cluster", pool.pool.cluster, inputs, lambda: cluster(_cluster(pool, tls)))


def _pool_endpoints(pool: PoolPlan, memo: Memo) -> object:
    name = pool.pool.cluster
    return memo.get("endpoints", name, pool.endpoints, lambda: _load_assignment(pool))


def _routes(plan: Plan) -> object:
    return route_configuration(edge_route_configuration(EDGE, plan))


def _cluster_name(pool: PoolPlan) -> str:
    return pool.pool.cluster


def _listener(plan: Plan, view: View) -> Json:
    manager = http_connection_manager(
        EDGE,
        faces_callers=True,
        http_filters=[_model_from_body(), request_limit_filter()],
        max_request_bytes=plan.max_request_bytes,
        retry_after_s=plan.retry_after_s,
    )
    chain: Json = {"filters": [manager]}
    if view.tls:
        chain["transport_socket"] = _tls()
    return {
        "name": EDGE,
        "address": {
            "socket_address": {"address": view.listen_address, "port_value": view.listen_port}
        },
        # Filters that read a body buffer it whole; a larger one is answered with 413.
        "per_connection_buffer_limit_bytes": plan.max_request_bytes,
        "filter_chains": [chain],
    }


def _tls() -> Json:
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"{TYPE}envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "common_tls_context": {
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_certificate_sds_secret_configs": [{"name": CERTIFICATE}],
            },
        },
    }


def _model_from_body() -> Json:
    """Put the JSON body's "model" where routes can match it; the body itself stays untouched."""
    target = {"metadata_namespace": METADATA_NAMESPACE, "key": "model"}
    return {
        "name": "envoy.filters.http.json_to_metadata",
        "typed_config": {
            "@type": f"{TYPE}envoy.extensions.filters.http.json_to_metadata.v3.JsonToMetadata",
            "request_rules": {
                "rules": [
                    {
                        "selectors": [{"key": "model"}],
                        "on_present": target,
                        "on_missing": {**target, "value": "__missing__"},
                        "on_error": {**target, "value": "__error__"},
                    }
                ],
                "allow_content_types_regex": {"regex": r"(?i)application/json\s*(;.*)?"},
                "allow_empty_content_type": True,
            },
        },
    }


def _cluster(pool: PoolPlan, tls: MeshTls | None) -> Json:
    value = pool_cluster(pool.pool.cluster, fallback=EDGE_FALLBACK)
    if tls is not None:
        value["transport_socket"] = to_nodes(tls)
    value["least_request_lb_config"] = least_request(pool)
    value["typed_extension_protocol_options"] = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{TYPE}envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {
                "http2_protocol_options": {
                    "connection_keepalive": {
                        "interval": seconds(_KEEPALIVE_INTERVAL_S),
                        "timeout": seconds(_KEEPALIVE_TIMEOUT_S),
                    }
                }
            },
            "outlier_detection": {
                "error_matcher": {
                    "http_response_headers_match": {
                        "headers": [{"name": NO_ENGINE_HEADER, "present_match": True}]
                    }
                }
            },
        }
    }
    value["outlier_detection"] = _nodes_that_can_not_serve()
    return value


def _nodes_that_can_not_serve() -> Json:
    """Eject a node that cannot be connected to, or that says that no engine of the pool lives.

    The second is what an edge hears first, and all that it hears while no control plane is up. No
    other answer, slow or overloaded or failed, ejects a node: the error matcher above decides what
    counts as a 5xx. Ejections are short: the node's own health checks find a recovered engine
    within a second, and nobody tells the edge.
    """
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 3,
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_local_origin_success_rate": 0,
        "consecutive_5xx": 2,
        "enforcing_consecutive_5xx": 100,
        "enforcing_consecutive_gateway_failure": 0,
        "enforcing_success_rate": 0,
        "interval": "0.5s",
        "base_ejection_time": "1s",
        "max_ejection_time": "4s",
        "max_ejection_percent": 100,
    }


def _load_assignment(pool: PoolPlan) -> object:
    """Return the pool's nodes with their weights; explicitly none when none lives."""
    assignment = ClusterLoadAssignment(cluster_name=pool.pool.cluster)
    if pool.endpoints:
        locality = assignment.endpoints.add()
        for endpoint in pool.endpoints:
            host = locality.lb_endpoints.add()
            host.load_balancing_weight.value = endpoint.weight
            address = host.endpoint.address.socket_address
            address.address, address.port_value = endpoint.address, endpoint.port
    return assignment

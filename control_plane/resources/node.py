"""A node's view: one mesh listener, and per pool a cluster of engines on Unix sockets."""

import ipaddress

from control_plane.fleet import EngineState
from control_plane.identity import Pool
from control_plane.plan import EnginePlan, MeshTls, NodePlan, Plan, PoolPlan
from control_plane.resources.clusters import circuit_breakers, least_request, pool_cluster
from control_plane.resources.edge_routes import POOL_HEADER
from control_plane.resources.http import http_connection_manager, retry_policy
from control_plane.resources.mesh_tls import (
    from_callers,
    mesh_secrets,
    rights_by_role,
    takes_part,
)
from control_plane.resources.messages import (
    TYPE,
    ClusterLoadAssignment,
    Json,
    cluster,
    listener,
    route_configuration,
    seconds,
)
from control_plane.resources.openai_errors import NO_ENGINE_HEADER, direct_error, set_header
from control_plane.resources.runtime import runtime_layer
from control_plane.resources.view import Resources, View
from control_plane.thresholds import (
    FALLBACK,
    PoolThresholds,
    Thresholds,
    connections,
    node_thresholds,
)
from engines.keep_alive import upstream_idle_timeout_s

MESH = "mesh"  # names the listener, its routes and its statistics
_RETRY_ON = "connect-failure,refused-stream,reset-before-request"
_DRAINING = 3  # envoy.config.core.v3.HealthStatus.DRAINING
_FEW = Thresholds(max_connections=2, max_pending_requests=16, max_requests=16, max_retries=1)


def build_node(plan: Plan, view: View) -> Resources:
    """Return a node's resources; none when the plan does not know the node."""
    node = next((node for node in plan.nodes if node.id == view.node_id), None)
    if node is None:
        return Resources()
    tls = plan.mesh_tls if plan.mesh_tls and takes_part(plan.mesh_tls, view) else None
    pools = _engines_by_pool(node)
    plans = {pool.pool: pool for pool in plan.pools}
    clusters = [_pool_cluster(plans[pool], engines) for pool, engines in pools.items()]
    clusters += [_metrics_cluster(engine) for engine in node.engines]
    return Resources(
        clusters=tuple(cluster(value) for value in sorted(clusters, key=_name)),
        endpoints=tuple(_load_assignment(pool, engines) for pool, engines in pools.items()),
        listeners=(listener(_listener(plan, node, tls)),),
        routes=(route_configuration(_routes(plan, node, pools)),),
        runtimes=(runtime_layer(_thresholds(plans, pools)),),
        secrets=mesh_secrets(plan.mesh_tls, view),
    )


def metrics_cluster_name(engine: str) -> str:
    """Return the cluster of one engine's metrics. No encoded pool name holds "_o"."""
    return f"metrics_of_{engine}"


def _name(value: Json) -> str:
    return str(value["name"])


def _engines_by_pool(node: NodePlan) -> dict[Pool, list[EnginePlan]]:
    pools: dict[Pool, list[EnginePlan]] = {}
    for engine in node.engines:
        pools.setdefault(engine.pool, []).append(engine)
    return {pool: pools[pool] for pool in sorted(pools, key=lambda pool: pool.cluster)}


def _listener(plan: Plan, node: NodePlan, tls: MeshTls | None) -> Json:
    value: Json = {
        "name": MESH,
        "address": {
            "socket_address": {
                "address": _bind_address(node.address),
                "port_value": node.port,
            }
        },
        "per_connection_buffer_limit_bytes": plan.max_request_bytes,
    }
    if tls is None:
        return {**value, "filter_chains": [_chain(plan, [])]}
    encrypted = {**_chain(plan, [rights_by_role(tls)]), "transport_socket": from_callers(tls)}
    if tls.mode == "require":
        return {**value, "filter_chains": [encrypted]}
    return {
        **value,
        "listener_filters": [_TLS_INSPECTOR],
        "filter_chains": [
            {**encrypted, "filter_chain_match": {"transport_protocol": "tls"}},
            {**_chain(plan, []), "filter_chain_match": {"transport_protocol": "raw_buffer"}},
        ],
    }


_TLS_INSPECTOR: Json = {
    "name": "envoy.filters.listener.tls_inspector",
    "typed_config": {
        "@type": f"{TYPE}envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"
    },
}


def _chain(plan: Plan, http_filters: list[Json]) -> Json:
    manager = http_connection_manager(
        MESH,
        faces_callers=False,
        http_filters=http_filters,
        max_request_bytes=plan.max_request_bytes,
        retry_after_s=plan.retry_after_s,
    )
    return {"filters": [manager]}


def _bind_address(address: str) -> str:
    """Return the address to bind: the registered one, or any when that is a host name."""
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return "0.0.0.0"  # noqa: S104 a host name cannot be bound
    return address


def _routes(plan: Plan, node: NodePlan, pools: dict[Pool, list[EnginePlan]]) -> Json:
    silence_s = {
        pool: model.generation_timeout_s for model in plan.models for pool, _ in model.routes
    }
    to_pools = [
        {
            "match": {
                "prefix": "/",
                "headers": [{"name": POOL_HEADER, "string_match": {"exact": pool.cluster}}],
            },
            "route": {
                "cluster": pool.cluster,
                "timeout": "0s",
                "idle_timeout": seconds(silence_s.get(pool, _DEFAULT_SILENCE_S)),
                "retry_policy": retry_policy(_RETRY_ON),
            },
            "request_headers_to_remove": [POOL_HEADER],
        }
        for pool in pools
    ]
    to_metrics = [
        {
            "match": {"path": f"/wattmesh/engines/{engine.engine}/metrics"},
            "route": {
                "cluster": metrics_cluster_name(engine.engine),
                "prefix_rewrite": "/metrics",
                "timeout": "5s",
            },
        }
        for engine in node.engines
    ]
    nothing = direct_error(404, "This node has no such path.", code="not_found")
    routes = [*to_metrics, *to_pools, _no_pool(), {"match": {"prefix": "/"}, **nothing}]
    return {
        "name": MESH,
        "virtual_hosts": [{"name": MESH, "domains": ["*"], "routes": routes}],
    }


def _no_pool() -> Json:
    """Answer for a pool that went, or has not come: the edge hears of it later or earlier.

    503, so that the edge tries another node; the listener's local replies give it its body.
    """
    by_name = [{"name": POOL_HEADER, "present_match": True}]
    return {
        "match": {"prefix": "/", "headers": by_name},
        "direct_response": {"status": 503},
        "response_headers_to_add": [set_header(NO_ENGINE_HEADER, "true")],
    }


_DEFAULT_SILENCE_S = 600.0  # of a pool that no model routes to any more


def _pool_cluster(plan: PoolPlan, engines: list[EnginePlan]) -> Json:
    """Return the cluster of a pool's engines on this node.

    Everything here follows from what the engines are, not from how they are: a sick engine or a
    moved weight changes endpoints only, and one that comes or goes only endpoints and thresholds.
    An engine's own limit has no runtime key, so it stands in the cluster: the largest of the pool.
    """
    keep_alive_s = min(engine.keep_alive_s for engine in engines)
    largest = max(engine.max_connections for engine in engines)
    value = pool_cluster(plan.pool.cluster, fallback=FALLBACK)
    value["circuit_breakers"]["per_host_thresholds"] = [
        {"max_connections": connections(largest, plan.max_queue)}
    ]
    value["least_request_lb_config"] = least_request(plan)
    value["health_checks"] = [_health_check()]
    value["metadata"] = {"filter_metadata": {"wattmesh": {"keep_alive_s": keep_alive_s}}}
    value["typed_extension_protocol_options"] = _http1(keep_alive_s)
    return value


def _thresholds(
    plans: dict[Pool, PoolPlan], pools: dict[Pool, list[EnginePlan]]
) -> dict[str, PoolThresholds]:
    return {
        pool.cluster: node_thresholds(
            sum(e.max_connections for e in engines), plans[pool].max_queue
        )
        for pool, engines in pools.items()
    }


def _http1(keep_alive_s: float) -> Json:
    """HTTP/1.1, spelled out: an engine answers HTTP/2 with a protocol error."""
    return {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{TYPE}envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "common_http_protocol_options": {
                "idle_timeout": seconds(upstream_idle_timeout_s(keep_alive_s))
            },
            "explicit_http_config": {"http_protocol_options": {}},
        }
    }


def _health_check() -> Json:
    """Refused connections tell a dead engine within a second; slow answers need three misses."""
    return {
        "timeout": "3s",
        "interval": "1s",
        "no_traffic_interval": "1s",
        "unhealthy_interval": "0.500s",
        "unhealthy_edge_interval": "0.250s",
        "unhealthy_threshold": 3,
        "healthy_threshold": 1,
        "http_health_check": {"path": "/health", "host": "wattmesh-engine"},
    }


def _metrics_cluster(engine: EnginePlan) -> Json:
    """Return the way to one engine's metrics; it never competes with prompts for connections."""
    name = metrics_cluster_name(engine.engine)
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": circuit_breakers(PoolThresholds(default=_FEW, high=_FEW)),
        "metadata": {"filter_metadata": {"wattmesh": {"keep_alive_s": engine.keep_alive_s}}},
        "typed_extension_protocol_options": _http1(engine.keep_alive_s),
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [
                {
                    "lb_endpoints": [
                        {"endpoint": {"address": {"pipe": {"path": engine.socket}}}},
                    ]
                }
            ],
        },
    }


def _load_assignment(pool: Pool, engines: list[EnginePlan]) -> object:
    """Return the pool's engines: the ready with their weight, the draining without new requests.

    A draining engine's open streams go on; a warming or dead one is not listed.
    """
    assignment = ClusterLoadAssignment(cluster_name=pool.cluster)
    listed = [e for e in engines if e.state in (EngineState.READY, EngineState.DRAINING)]
    if listed:
        locality = assignment.endpoints.add()
        for engine in listed:
            host = locality.lb_endpoints.add()
            host.load_balancing_weight.value = max(1, engine.weight)
            host.endpoint.address.pipe.path = engine.socket
            if engine.state is EngineState.DRAINING:
                host.health_status = _DRAINING
    return assignment

"""Request limits at the edge: one filter, its buckets by ECDS, its share by the edges' number.

The filter's configuration is a resource of its own (ECDS), so that a limit changes no listener;
and not part of the routes, whose every update would fill all buckets anew. Envoy divides each
bucket by the hosts of the edges' own cluster (EDS), which no request ever goes to.
"""

from collections.abc import Sequence
from hashlib import sha256

from control_plane.limits import TokenBucket
from control_plane.plan import Plan
from control_plane.resources.messages import (
    ADS,
    TYPE,
    ClusterLoadAssignment,
    Json,
    extension,
    typed_struct,
)

FILTER = "request-limits"  # names the filter and its resource
EDGES = "local_edges"  # the edges' own cluster, in every edge's bootstrap; no pool is named so
_LOCAL_RATE_LIMIT = f"{TYPE}envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit"
_METADATA = "wattmesh"
_MODEL, _FLEET, _ALL = "model", "fleet", "all"
_NO_LIMIT = TokenBucket(max_tokens=2**32 - 1, tokens_per_fill=2**32 - 1, fill_interval_s=1.0)


def request_limit_filter() -> Json:
    """Return the HTTP filter, whose configuration comes by ECDS."""
    return {
        "name": FILTER,
        "config_discovery": {"config_source": ADS, "type_urls": [_LOCAL_RATE_LIMIT]},
    }


def limited_route(model: str) -> Json:
    """Return the metadata by which a route's requests are counted."""
    return {"filter_metadata": {_METADATA: {_MODEL: model, _FLEET: _ALL}}}


def request_limits(plan: Plan) -> object:
    """Return the filter's configuration: a bucket for each limited model, and the fleet's."""
    limits = [(_MODEL, model.model, model.request_limit) for model in plan.models]
    limits.append((_FLEET, _ALL, plan.request_limit))
    edges = len(plan.edges)
    value: Json = {
        "stat_prefix": FILTER.replace("-", "_"),
        # Both are 0 % unless set: a filter that limits nothing.
        "filter_enabled": {"default_value": {"numerator": 100}},
        "filter_enforced": {"default_value": {"numerator": 100}},
        "token_bucket": _bucket(_NO_LIMIT, edges),
        "always_consume_default_token_bucket": False,
        "local_cluster_rate_limit": {},
        "rate_limits": [_count_by(_MODEL), _count_by(_FLEET)],
        "descriptors": [
            {
                "entries": [{"key": key, "value": name}],
                "token_bucket": _bucket(bucket, edges),
            }
            for key, name, bucket in limits
            if bucket is not None
        ],
        "rate_limited_as_resource_exhausted": True,
        # Of the bucket that limits nothing, nobody needs to be told.
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03" if plan.limited else "OFF",
        "enable_retry_after_header": True,
    }
    return extension({"name": FILTER, "typed_config": typed_struct(_LOCAL_RATE_LIMIT, value)})


def edges_assignment(edges: Sequence[str]) -> object:
    """Return one endpoint for each edge. Addresses need only differ; none is ever dialled."""
    assignment = ClusterLoadAssignment(cluster_name=EDGES)
    if edges:
        locality = assignment.endpoints.add()
        for edge in edges:
            host = locality.lb_endpoints.add()
            digest = sha256(edge.encode(errors="surrogatepass")).hexdigest()
            host.endpoint.address.pipe.path = f"/wattmesh/edges/{digest[:32]}"
    return assignment


def _count_by(key: str) -> Json:
    """Routes that are no model's carry no such metadata, and are not counted."""
    return {
        "actions": [
            {
                "metadata": {
                    "descriptor_key": key,
                    "metadata_key": {"key": _METADATA, "path": [{"key": key}]},
                    "source": "ROUTE_ENTRY",
                }
            }
        ]
    }


def _bucket(bucket: TokenBucket, edges: int) -> Json:
    """A request takes one token of an edge's share, so the whole must hold one for each edge."""
    return {
        "max_tokens": max(bucket.max_tokens, edges),
        "tokens_per_fill": bucket.tokens_per_fill,
        "fill_interval": f"{bucket.fill_interval_s:.9f}s",
    }

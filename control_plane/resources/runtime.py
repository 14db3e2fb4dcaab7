"""The runtime layer (RTDS): circuit-breaker thresholds, live and without a changed cluster.

Envoy reads each threshold from the runtime key `circuit_breakers.<cluster>.<priority>.<field>`
before the cluster's own value, at every request. Our cluster names hold no dot.
"""

from collections.abc import Iterator, Mapping

from control_plane.resources.messages import Json, runtime
from control_plane.thresholds import PoolThresholds, Thresholds

LAYER = "wattmesh"  # the layer's name in every bootstrap
_PREFIX = "circuit_breakers"


def runtime_layer(thresholds: Mapping[str, PoolThresholds]) -> object:
    """Return the Runtime message that holds these clusters' thresholds."""
    layer: Json = {}
    for cluster in sorted(thresholds):
        for priority in ("default", "high"):
            for field, value in _fields(getattr(thresholds[cluster], priority)):
                layer[f"{_PREFIX}.{cluster}.{priority}.{field}"] = value
    return runtime(LAYER, layer)


def _fields(thresholds: Thresholds) -> Iterator[tuple[str, int]]:
    yield "max_connections", thresholds.max_connections
    yield "max_pending_requests", thresholds.max_pending_requests
    yield "max_requests", thresholds.max_requests
    yield "max_retries", thresholds.max_retries
    yield "retry_budget.min_retry_concurrency", thresholds.max_retries

"""What all clusters share: breakers with every field written, and no surprises from defaults."""

from control_plane.plan import PoolPlan
from control_plane.resources.messages import ADS, Json, seconds
from control_plane.thresholds import PoolThresholds, Thresholds
from control_plane.weights import ACTIVE_REQUEST_BIASES, EXPONENTS

_CONNECT_TIMEOUT_S = 1.0
_EDS_FETCH_TIMEOUT_S = 5.0


def circuit_breakers(thresholds: PoolThresholds) -> Json:
    """Return both priorities' thresholds, with all four fields, and a budget for retries."""
    return {
        "thresholds": [
            _priority("DEFAULT", thresholds.default),
            _priority("HIGH", thresholds.high),
        ]
    }


def _priority(priority: str, thresholds: Thresholds) -> Json:
    """The retry budget's floor lets all requests of a killed engine move at once."""
    return {
        "priority": priority,
        "max_connections": thresholds.max_connections,
        "max_pending_requests": thresholds.max_pending_requests,
        "max_requests": thresholds.max_requests,
        "max_retries": thresholds.max_retries,
        "retry_budget": {
            "budget_percent": {"value": 25.0},
            "min_retry_concurrency": thresholds.max_retries,
        },
        "track_remaining": True,
    }


def pool_cluster(name: str, *, fallback: PoolThresholds) -> Json:
    """Return a cluster whose endpoints come by EDS under its own name.

    Panic mode is off: with no healthy endpoint the answer is a clear 503, not traffic to the dead.
    Its thresholds come by RTDS; `fallback` holds while none has arrived.
    """
    return {
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {
            "eds_config": {**ADS, "initial_fetch_timeout": seconds(_EDS_FETCH_TIMEOUT_S)}
        },
        "connect_timeout": seconds(_CONNECT_TIMEOUT_S),
        "lb_policy": "LEAST_REQUEST",
        "common_lb_config": {
            "healthy_panic_threshold": {"value": 0},
            # By default Envoy holds changes of health and weight back for up to a second.
            "update_merge_window": "0s",
        },
        "ignore_health_on_host_removal": True,
        "circuit_breakers": circuit_breakers(fallback),
    }


def least_request(pool: PoolPlan) -> Json:
    """Return how Envoy weighs active requests against weights.

    Envoy schedules by weight / (active + 1)^bias. With a bias of 0 the share follows the weight
    exactly. Only where all weights are equal does it compare two hosts' active requests instead.
    """
    balance = pool.balance
    value: Json = {
        "active_request_bias": {
            "default_value": ACTIVE_REQUEST_BIASES[balance],
            "runtime_key": f"wattmesh.active_request_bias.{balance}",
        }
    }
    if pool.slow_start_s:
        value["slow_start_config"] = _slow_start(pool)
    return value


def _slow_start(pool: PoolPlan) -> Json:
    """Ramp what a new host is sent: its caches are empty and its kernels not compiled yet.

    Envoy multiplies the weight by (age / window)^(1 / aggression). A weight is a power of the
    capacity, so the aggression is that exponent's inverse, and the capacity grows evenly.
    """
    return {
        "slow_start_window": seconds(pool.slow_start_s),
        "aggression": {
            "default_value": 1.0 / EXPONENTS[pool.balance],
            "runtime_key": f"wattmesh.slow_start_aggression.{pool.balance}",
        },
        "min_weight_percent": {"value": 1.0},
    }

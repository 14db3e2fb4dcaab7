"""What the edge's and the nodes' listeners share: one HTTP connection manager each.

HTTP/1.1 and HTTP/2 are told apart by the connection's first bytes (h2c with prior knowledge) or
by ALPN. `ignore_http_11_upgrade` drops every attempt to upgrade, as Java's clients make them on
plain connections (to h2c the JDK's, to TLS Apache's): the request goes on with its body, where
Envoy would answer 403.
"""

from control_plane.resources.messages import ADS, TYPE, Json, seconds
from control_plane.resources.openai_errors import NO_ENGINE_HEADER, local_reply_config

_MAX_CONCURRENT_STREAMS = 1024  # per connection
_MIN_WINDOW_BYTES = 65_535  # HTTP/2's own default; a lower one is no valid setting
_IDLE_CONNECTION_S = 3600.0
_MAX_HEADERS, _MAX_HEADERS_KB = 100, 60  # Envoy's defaults; an edge adds some to what it lets in
_HEADERS_TIMEOUT_S = 30.0
_STREAM_IDLE_S = 300.0  # until a route is chosen; each route then sets its own

_RESERVED_HEADERS = (
    "x-wattmesh-pool",
    "x-wattmesh-engine",
    "x-wattmesh-version",
    "x-wattmesh-degraded",
    "x-wattmesh-priority",
)

_ACCESS_LOG_FIELDS = {
    "time": "%START_TIME%",
    "method": "%REQ(:METHOD)%",
    "path": "%PATH(NQ)%",  # a query may hold a key
    "protocol": "%PROTOCOL%",
    "status": "%RESPONSE_CODE%",
    "flags": "%RESPONSE_FLAGS%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "cluster": "%UPSTREAM_CLUSTER%",
    "upstream": "%UPSTREAM_HOST%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "request_bytes": "%BYTES_RECEIVED%",
    "response_bytes": "%BYTES_SENT%",
    "first_byte_ms": "%RESPONSE_DURATION%",
    "duration_ms": "%DURATION%",
    "request_id": "%REQ(X-REQUEST-ID)%",
}


def http_connection_manager(
    name: str,
    *,
    faces_callers: bool,
    http_filters: list[Json],
    max_request_bytes: int,
    retry_after_s: int,
) -> Json:
    """Return the network filter of a listener whose routes come by RDS under the same name.

    Where it faces callers, headers that steer Envoy or claim what only we may say are dropped
    before anything reads them, and the caller's address is the connection's.
    """
    return {
        "name": "envoy.filters.network.http_connection_manager",
        "typed_config": {
            "@type": f"{TYPE}envoy.extensions.filters.network.http_connection_manager.v3"
            ".HttpConnectionManager",
            "stat_prefix": name,
            "codec_type": "AUTO",
            "rds": {"route_config_name": name, "config_source": ADS},
            "http_filters": [*http_filters, _router()],
            "http_protocol_options": {
                "ignore_http_11_upgrade": [{"safe_regex": {"regex": ".*"}}],
            },
            "http2_protocol_options": {
                "max_concurrent_streams": _MAX_CONCURRENT_STREAMS,
                # An HTTP/2 body is limited by its stream's window, not by the listener's buffer.
                "initial_stream_window_size": max(_MIN_WINDOW_BYTES, max_request_bytes),
                # One caller's bad request must not end the connection that others share.
                "override_stream_error_on_invalid_http_message": True,
            },
            "common_http_protocol_options": {
                "idle_timeout": seconds(_IDLE_CONNECTION_S),
                "max_headers_count": _MAX_HEADERS if faces_callers else 2 * _MAX_HEADERS,
            },
            "max_request_headers_kb": _MAX_HEADERS_KB if faces_callers else 2 * _MAX_HEADERS_KB,
            "stream_idle_timeout": seconds(_STREAM_IDLE_S),
            "request_headers_timeout": seconds(_HEADERS_TIMEOUT_S),
            "server_name": "wattmesh",
            "use_remote_address": faces_callers,
            "early_header_mutation_extensions": [_drop_reserved_headers()] if faces_callers else [],
            "preserve_external_request_id": True,
            "normalize_path": True,
            "local_reply_config": local_reply_config(
                max_request_bytes=max_request_bytes,
                retry_after_s=retry_after_s,
                no_engine={} if faces_callers else {NO_ENGINE_HEADER: "true"},
            ),
            "access_log": [
                {
                    "name": "envoy.access_loggers.stdout",
                    "typed_config": {
                        "@type": f"{TYPE}envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
                        "log_format": {"json_format": {"listener": name, **_ACCESS_LOG_FIELDS}},
                    },
                }
            ],
        },
    }


def _drop_reserved_headers() -> Json:
    reserved = [{"remove": name} for name in _RESERVED_HEADERS]
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": f"{TYPE}envoy.extensions.http.early_header_mutation.header_mutation.v3"
            ".HeaderMutation",
            "mutations": [{"remove_on_match": {"key_matcher": {"prefix": "x-envoy-"}}}, *reserved],
        },
    }


def _router() -> Json:
    return {
        "name": "envoy.filters.http.router",
        "typed_config": {
            "@type": f"{TYPE}envoy.extensions.filters.http.router.v3.Router",
            "suppress_envoy_headers": True,
        },
    }


# Envoy excludes no host: it picks again until it meets one that was not tried. Between a strong
# host and a weak one whose weight is a thousandth, a few picks are all the strong one's.
_MAX_PICKS = 20_000  # some milliseconds at the worst


def retry_policy(retry_on: str) -> Json:
    """Return a retry policy that goes to hosts not tried yet.

    Only failures before the first byte of an answer are retried; how many at once is bounded by
    the cluster's retry budget.
    """
    return {
        "retry_on": retry_on,
        "num_retries": 2,
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": f"{TYPE}envoy.extensions.retry.host.previous_hosts.v3"
                    ".PreviousHostsPredicate"
                },
            }
        ],
        "host_selection_retry_max_attempts": _MAX_PICKS,
    }

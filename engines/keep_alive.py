"""The one setting behind two time-outs: when an engine closes an idle connection, and Envoy before.

If Envoy kept an idle connection longer than the engine does, it would now and then send a request
into a connection that the engine is closing: a 502 that nobody can explain. So the engine's
keep-alive is set once per host, travels in the engine's metadata, and Envoy's idle time-out is
derived from it.
"""

ENGINE_KEEP_ALIVE_S = 5.0  # vLLM's default (VLLM_HTTP_TIMEOUT_KEEP_ALIVE)
_UPSTREAM_SHARE = 0.6  # leaves 2 s of 5 s for timers and scheduling on a busy host


def upstream_idle_timeout_s(keep_alive_s: float) -> float:
    """Return Envoy's idle time-out (seconds) for engines that keep connections this long."""
    return keep_alive_s * _UPSTREAM_SHARE

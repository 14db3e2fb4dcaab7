"""The metrics of a simulated engine, under vLLM's own names, so that every dashboard fits."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_LABELS = ("model_name", "engine")
_REASONS = ("stop", "length", "abort", "error", "repetition")  # vLLM's FinishReason
_LATENCIES_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class EngineMetrics:
    """All metrics of one engine, in a registry of their own."""

    def __init__(self, model_name: str) -> None:
        self._registry = registry = CollectorRegistry()
        labels = {"model_name": model_name, "engine": "0"}

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"vllm:{name}", text, _LABELS, registry=registry).labels(**labels)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"vllm:{name}", text, _LABELS, registry=registry).labels(**labels)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(
                f"vllm:{name}", text, _LABELS, buckets=_LATENCIES_S, registry=registry
            ).labels(**labels)

        self.running = gauge("num_requests_running", "Requests in the batch")
        self.waiting = gauge("num_requests_waiting", "Requests waiting for the batch")
        self.kv_cache_usage = gauge("kv_cache_usage_perc", "KV cache in use, 1 = full")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens processed")
        self.generation_tokens = counter("generation_tokens", "Tokens generated")
        self.time_to_first_token = histogram("time_to_first_token_seconds", "To the first token")
        self.inter_token_latency = histogram("inter_token_latency_seconds", "Between tokens")
        self.e2e_latency = histogram("e2e_request_latency_seconds", "From arrival to the end")
        self._success = Counter(
            "vllm:request_success",
            "Requests ended, by reason",
            (*_LABELS, "finished_reason"),
            registry=registry,
        )
        self._labels = labels
        for reason in _REASONS:  # as vLLM does: a rate over a series that is new misses its first
            self._success.labels(**labels, finished_reason=reason)

    def finished(self, reason: str) -> None:
        """Count a request that ended: one of vLLM's reasons, "length" or "abort" here."""
        self._success.labels(**self._labels, finished_reason=reason).inc()

    def render(self) -> bytes:
        """Return Prometheus' text form."""
        return generate_latest(self._registry)

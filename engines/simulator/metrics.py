"""The metrics of a simulated engine, under vLLM's own names, so that every dashboard fits.

Each is observed when vLLM 0.32 does so: a prompt counts as a whole with its first token, the phases
of a request when it ends.
"""

from collections.abc import Sequence as Values

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engines.simulator.schedule import StepEnd

_LABELS = ("model_name", "engine")
_REASONS = ("stop", "length", "abort", "error", "repetition")  # vLLM's FinishReason
# vllm/v1/metrics/buckets.py
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5),
    *(10, 20, 40, 80, 160, 640, 2560),
)
_BETWEEN_TOKENS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5),
    *(10, 20, 40, 80),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60),
    *(120, 240, 480, 960, 1920, 7680),
)
_ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class EngineMetrics:
    """All metrics of one engine, in a registry of their own."""

    def __init__(self, model_name: str) -> None:
        self._registry = registry = CollectorRegistry()
        labels = {"model_name": model_name, "engine": "0"}

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"vllm:{name}", text, _LABELS, registry=registry).labels(**labels)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"vllm:{name}", text, _LABELS, registry=registry).labels(**labels)

        def histogram(name: str, text: str, buckets: Values[float]) -> Histogram:
            return Histogram(
                f"vllm:{name}", text, _LABELS, buckets=buckets, registry=registry
            ).labels(**labels)

        self.running = gauge("num_requests_running", "Requests in the batch")
        self.waiting = gauge("num_requests_waiting", "Requests waiting for the batch")
        self.kv_cache_usage = gauge("kv_cache_usage_perc", "KV cache in use, 1 = full")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens processed")
        self.generation_tokens = counter("generation_tokens", "Tokens generated")
        self.iteration_tokens = histogram(
            "iteration_tokens_total", "Tokens of a step", _ITERATION_TOKENS
        )
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds", "To the first token", _FIRST_TOKEN_S
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds", "Between tokens", _BETWEEN_TOKENS_S
        )
        self.e2e_latency = histogram(
            "e2e_request_latency_seconds", "From arrival to the end", _REQUEST_S
        )
        self.queue_time = histogram("request_queue_time_seconds", "In the queue", _REQUEST_S)
        self.prefill_time = histogram(
            "request_prefill_time_seconds", "From the queue to the first token", _REQUEST_S
        )
        self.decode_time = histogram(
            "request_decode_time_seconds", "From the first token to the last", _REQUEST_S
        )
        self._success = Counter(
            "vllm:request_success",
            "Requests ended, by reason",
            (*_LABELS, "finished_reason"),
            registry=registry,
        )
        # Of all reasons, as vLLM does: a rate over a series that is new misses its first.
        self._ended = {
            reason: self._success.labels(**labels, finished_reason=reason) for reason in _REASONS
        }

    def note_step(self, step: StepEnd, now_s: float) -> None:
        """Count what a step made."""
        made = len(step.started) + len(step.continued)
        if not made:
            return  # the middle of a prompt
        prompt_tokens = sum(sequence.prompt_tokens for sequence in step.started)
        self.prompt_tokens.inc(prompt_tokens)
        self.generation_tokens.inc(made)
        self.iteration_tokens.observe(prompt_tokens + made)
        for _ in step.continued:
            self.inter_token_latency.observe(step.gap_s)
        for sequence in step.started:
            self.time_to_first_token.observe(now_s - sequence.arrived_s)
        for sequence in step.finished:
            self._ended["length"].inc()
            self.e2e_latency.observe(now_s - sequence.arrived_s)
            self.queue_time.observe(sequence.scheduled_s - sequence.arrived_s)
            self.prefill_time.observe(sequence.first_token_s - sequence.scheduled_s)
            self.decode_time.observe(sequence.last_token_s - sequence.first_token_s)

    def note_abort(self) -> None:
        """Count a request whose caller went away."""
        self._ended["abort"].inc()

    def show(self, running: int, waiting: int, kv_cache_usage: float) -> None:
        """Set the gauges."""
        self.running.set(running)
        self.waiting.set(waiting)
        self.kv_cache_usage.set(kv_cache_usage)

    def render(self) -> bytes:
        """Return Prometheus' text form."""
        return generate_latest(self._registry)

"""What one scrape of a vLLM engine's metrics says about its work; what it does not say is unknown.

vLLM has renamed metrics over time, and newer and older engines run side by side: each value has
its names, newest first. Only the lines that hold one of them are parsed.
"""

import math
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

MAX_SCRAPE_BYTES = 4 * 1024 * 1024
_NAMES = {
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "token_gaps_s": (
        "vllm:inter_token_latency_seconds_sum",
        "vllm:time_per_output_token_seconds_sum",
    ),
    "token_gaps": (
        "vllm:inter_token_latency_seconds_count",
        "vllm:time_per_output_token_seconds_count",
    ),
}
_LINE_STARTS = tuple(
    f"{name}{end}".encode() for names in _NAMES.values() for name in names for end in ("{", " ")
)
_LARGEST_OF = ("kv_cache_usage",)  # of several ranks; everything else is their sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One scrape. Counters since the engine's start; None = the engine does not say."""

    at_s: float  # of a clock that never jumps
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    running: float | None = None  # sequences in the batch now
    waiting: float | None = None
    kv_cache_usage: float | None = None  # 0-1
    token_gaps_s: float | None = None  # sum of the times between a sequence's tokens
    token_gaps: float | None = None  # how many


def parse_observation(text: bytes, at_s: float) -> Observation | None:
    """Return what a scrape says, or None when it is not Prometheus' text form."""
    lines = [line for line in text.splitlines() if line.startswith(_LINE_STARTS)]
    found: dict[str, list[float]] = {}
    try:
        # Without a type line each sample is a family of its own, under its whole name.
        for family in text_string_to_metric_families(b"\n".join(lines).decode() + "\n"):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample.value)
    except (ValueError, IndexError, KeyError, TypeError):
        return None  # the parser's ways to stumble over text that is something else
    return Observation(at_s=at_s, **{key: _value(key, found) for key in _NAMES})


def _value(key: str, found: dict[str, list[float]]) -> float | None:
    values = next((found[name] for name in _NAMES[key] if name in found), None)
    if values is None:
        return None
    value = max(values) if key in _LARGEST_OF else sum(values)
    return value if math.isfinite(value) and value >= 0 else None

"""Request limits: from a rate of the policy to a token bucket of the whole fleet.

A limit is stated for all edges together; Envoy divides each bucket by the number of edges that are
connected. A rate may be absolute, or for each 100 of live capacity (one A100-80GB), so that it
follows the fleet.
"""

import math
import re
from dataclasses import dataclass
from fractions import Fraction

_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?/ ?(\d{0,9})(ms|s|m|h)", re.ASCII)
_UNITS_S = {"ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600)}
_LEAST_PER_S = Fraction(1, 86_400)  # an interval of Envoy must stay a number that it can hold
_MIN_INTERVAL_S = Fraction(1, 20)  # Envoy refuses a shorter fill interval than 50 ms
_BURST_S = 2  # seconds of the rate, where no burst is stated
_DIGITS = 2  # of a rate that follows capacity: each change of it starts the buckets anew
_UINT32_MAX = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimit:
    """A limit as the policy states it; exactly one of the rates is set. Requests per second."""

    rate_per_s: Fraction | None = None
    rate_per_s_per_a100: Fraction | None = None
    burst: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBucket:
    """A limit in Envoy's terms, of all edges together; one request takes one token."""

    max_tokens: int
    tokens_per_fill: int
    fill_interval_s: float  # at least 0.05


def parse_rate(value: object) -> Fraction:
    """Return requests per second of "50/s", "600/m", "2.5/s" or "1/30ms". Raise ValueError."""
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    count = int(match[2] or 1) if match else 0
    if match is None or count == 0 or Fraction(match[1]) == 0:
        raise ValueError('a rate above 0 with a unit, e.g. "50/s", "600/m", "1/30ms"')
    rate_per_s = Fraction(match[1]) / (count * _UNITS_S[match[3]])
    if rate_per_s < _LEAST_PER_S:
        raise ValueError('a rate of at least "1/24h"')
    return rate_per_s


def token_bucket(limit: RequestLimit | None, capacity: float) -> TokenBucket | None:
    """Return the bucket of a limit where `capacity` (100 = one A100-80GB) is live now.

    None without a limit, and where nothing is live: no engine is a 503, not a 429.
    """
    if limit is None:
        return None
    rate_per_s = limit.rate_per_s
    if limit.rate_per_s_per_a100 is not None:
        rate_per_s = _rounded(limit.rate_per_s_per_a100 * Fraction(capacity) / 100)
    if not rate_per_s:
        return None
    rate_per_s = min(max(rate_per_s, _LEAST_PER_S), Fraction(_UINT32_MAX))
    tokens, interval_s = _fill(rate_per_s)
    burst = math.ceil(rate_per_s * _BURST_S) if limit.burst is None else limit.burst
    return TokenBucket(
        max_tokens=min(max(1, burst), _UINT32_MAX),
        tokens_per_fill=tokens,
        fill_interval_s=float(interval_s),
    )


def _fill(rate_per_s: Fraction) -> tuple[int, Fraction]:
    """Return the fewest tokens whose interval (seconds) is at least 50 ms: 1/30ms is 2 in 60 ms."""
    tokens = math.ceil(rate_per_s * _MIN_INTERVAL_S)
    return tokens, tokens / rate_per_s


def _rounded(rate_per_s: Fraction) -> Fraction:
    return Fraction(f"{float(rate_per_s):.{_DIGITS}g}")

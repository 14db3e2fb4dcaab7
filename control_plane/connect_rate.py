"""How many streams may open in a while, so that a reconnect storm starves nobody's ACKs.

A token bucket that hands out turns: a stream over the rate is told how long to wait, first come
first served; one that would wait too long is to be turned away, and Envoy comes again after a
back-off. Time is an argument.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectRate:
    """What a control plane takes of new streams. A thousand at once are all in within 2 s."""

    streams_per_s: float = 300.0  # > 0; one core takes some 400
    burst_streams: int = 400  # at least 1, at once after a quiet time
    max_wait_s: float = 5.0  # well below the 15 s that Envoy waits for a first answer


class ConnectBucket:
    """Hands out turns at a rate."""

    def __init__(self, rate: ConnectRate) -> None:
        self._rate = rate
        self._turns = float(rate.burst_streams)  # left; below 0 as many are waited for
        self._counted_at_s = 0.0

    def take(self, now_s: float) -> float | None:
        """Return how long (seconds) a stream that opens now has to wait; None if it is too long.

        Who is turned away takes no turn from those who wait.
        """
        earned = max(0.0, now_s - self._counted_at_s) * self._rate.streams_per_s
        self._turns = min(float(self._rate.burst_streams), self._turns + earned)
        self._counted_at_s = now_s
        wait_s = max(0.0, 1.0 - self._turns) / self._rate.streams_per_s
        if wait_s > self._rate.max_wait_s:
            return None
        self._turns -= 1.0
        return wait_s

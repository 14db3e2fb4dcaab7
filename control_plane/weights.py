"""From capacities to Envoy's endpoint weights: whole numbers, at least 1, sums within uint32.

`proportional` sets weight = capacity. `latency` sets weight = capacity cubed, with Envoy's
active_request_bias at 3: Envoy schedules by weight / (active + 1)^bias, so a strong engine is
favoured while idle and gives way as it fills; the higher both are, the nearer the schedule comes
to the fewest requests per capacity. Chosen by measurement, see tests/load/README.md: better than
squares with a bias of 2 at 60 and 80 % load, as good at 90 %, where fourth powers begin to cost.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MIN_EXACT_WEIGHT = 100  # rounding to whole numbers then moves a ratio by at most 0.5 %
MAX_WEIGHT_SUM = 2**32 - 1  # of a locality; Envoy refuses more
EXPONENTS = {"proportional": 1.0, "latency": 3.0}
ACTIVE_REQUEST_BIASES = {"proportional": 0.0, "latency": 3.0}


@dataclass(frozen=True, slots=True)
class WeightScale:
    """The rule from capacity to weight that all engines and nodes of a pool share."""

    exponent: float
    factor: float  # applied to the capacity before the exponent

    def weight(self, capacity: float) -> int:
        """Return the weight of a capacity above 0."""
        return max(1, round(float((capacity * self.factor) ** self.exponent)))


def weight_scale(nodes: Iterable[Sequence[float]], balance: str) -> WeightScale:
    """Return the scale of a pool from its engines' capacities, node by node, live or not.

    The factor is 1 where possible (capacity 300 is weight 300, or its cube under `latency`);
    larger when the weakest engine would get less than MIN_EXACT_WEIGHT; smaller when the nodes'
    sum would leave uint32. A node's weight is that of its summed capacity, which is at least the
    sum of its engines' weights, so theirs fit too. Engines that are down count, so that weights do
    not move with health.
    """
    exponent = EXPONENTS[balance]
    weakest, total = math.inf, 0.0
    for capacities in nodes:
        weakest = min(weakest, *capacities)
        total += sum(capacities) ** exponent
    exact = MIN_EXACT_WEIGHT ** (1 / exponent) / weakest
    # 1 % is left for rounding up: at most half a unit on each weight of at least 50.
    largest = (MAX_WEIGHT_SUM / (total * 1.01)) ** (1 / exponent)
    return WeightScale(exponent, min(max(1.0, exact), largest))

"""From capacities to Envoy's endpoint weights: whole numbers, at least 1, sums within uint32.

`proportional` sets weight = capacity. `latency` sets weight = the fourth power of the capacity,
with Envoy's active_request_bias at 5.5: Envoy schedules by weight / (active + 1)^bias, so a strong
engine is favoured while idle and gives way as it fills; the higher both are, the nearer the
schedule comes to the fewest requests per capacity. A bias above the exponent holds the strong back
near saturation, where equal powers overrun them. Chosen by measurement, see tests/load/README.md:
of the pairs tried it is the mildest that gains at every load. Higher powers gain little more, and
leave uint32 no room between a fleet's weakest and strongest card.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MIN_EXACT_WEIGHT = 100  # rounding to whole numbers then moves a ratio by at most 0.5 %
MAX_WEIGHT_SUM = 2**32 - 1  # of a locality; Envoy refuses more
_STEPS = 16
_FACTORS = {"proportional": 1.0, "latency": 0.1}
_NEARLY = 1 - 1e-9  # 100 / 0.1 may be a little over 1000
EXPONENTS = {"proportional": 1.0, "latency": 4.0}
ACTIVE_REQUEST_BIASES = {"proportional": 0.0, "latency": 5.5}


@dataclass(frozen=True, slots=True)
class WeightScale:
    """The rule from capacity to weight that all engines and nodes of a pool share."""

    exponent: float
    factor: float  # applied to the capacity before the exponent

    def weight(self, capacity: float) -> int:
        """Return the weight of a capacity above 0."""
        return max(1, round(float((capacity * self.factor) ** self.exponent)))


def weight_scale(nodes: Iterable[Sequence[float]], balance: str) -> WeightScale:
    """Return the scale of a pool from its engines' capacities, node by node, live or not."""
    capacities = [tuple(node) for node in nodes]
    weakest = min(min(node) for node in capacities)
    return pool_scale(weakest, (sum(node) for node in capacities), balance)


def pool_scale(weakest: float, node_totals: Iterable[float], balance: str) -> WeightScale:
    """Return the scale of a pool whose weakest engine and whose nodes have these capacities.

    The factor is 1 under `proportional` where possible (capacity 300 is weight 300), and a tenth
    under `latency` (capacity 300 is weight 810,000), which leaves room for a thousand such nodes;
    larger when the weakest engine would get less than MIN_EXACT_WEIGHT; smaller when the nodes'
    sum would leave uint32. A node's weight is that of its summed capacity, which is at least the
    sum of its engines' weights. Engines that are down count, so that weights do not move with
    health; and factors come in steps, so that one engine's capacity seldom moves
    the weights of all others.
    """
    exponent = EXPONENTS[balance]
    total: float = sum(node_total**exponent for node_total in node_totals)
    exact = MIN_EXACT_WEIGHT ** (1 / exponent) / weakest
    # 1 % is left for rounding up: at most half a unit on each weight of at least 50.
    largest = (MAX_WEIGHT_SUM / (total * 1.01)) ** (1 / exponent)
    base = _FACTORS[balance]
    wanted = base if exact <= base else _round_number(exact)
    return WeightScale(exponent, wanted if wanted <= largest else _step_down(largest))


def _round_number(factor: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, 50 …: weights stay readable."""
    power = 10.0 ** math.floor(math.log10(factor))
    return next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= factor * _NEARLY)


def _step_down(factor: float) -> float:
    """Return the next lower of sixteen steps to a doubling: near a full sum no weight is wasted."""
    return float(2 ** (math.floor(math.log2(factor) * _STEPS) / _STEPS))

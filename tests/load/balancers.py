"""Balancers over the queueing model: Envoy's, HAProxy's, some that are not built, and a yardstick.

Each is called with the engines, the time and the tokens of a request, and returns whose it is. Only
the yardstick looks at the tokens.
"""

import heapq
import random
from collections import deque
from collections.abc import Sequence

from tests.load.queueing import Choose, Engine


class EnvoySchedule:
    """Envoy's weighted LEAST_REQUEST: a schedule by weight / (active + 1)^bias.

    A host is put back with the weight that it has at that moment; bias 0 is weighted round robin.
    """

    def __init__(self, weights: Sequence[float], bias: float) -> None:
        self._weights = list(weights)
        self._bias = bias
        self._now = 0.0
        self._queue = [(1 / weight, index) for index, weight in enumerate(weights)]
        heapq.heapify(self._queue)

    def __call__(self, engines: Sequence[Engine], _now_s: float, _tokens: float) -> int:
        self._now, index = heapq.heappop(self._queue)
        weight = self._weights[index] / (engines[index].active + 1) ** self._bias
        heapq.heappush(self._queue, (self._now + 1 / weight, index))
        return index


class FollowingUtilisation:
    """EnvoySchedule whose exponent and bias follow the utilisation that was measured.

    Utilisation is read every `every_s`, as the share of all slots that run a request, averaged over
    that time. What counts is the highest of the last `held` readings, so that the steep settings of
    an idle fleet are given up at once and taken up late; and a step is left downwards only when the
    utilisation is below its limit by `hysteresis`. Before all readings are there, the fleet counts
    as full.
    """

    def __init__(
        self,
        capacities: Sequence[float],
        steps: Sequence[tuple[float, float, float]],
        *,
        every_s: float = 5.0,
        held: int = 6,
        hysteresis: float = 0.03,
    ) -> None:
        self._capacities = capacities
        self._steps = steps  # (up to this utilisation, exponent, bias), rising; the last takes all
        self._every_s, self._hysteresis = every_s, hysteresis
        self._readings = deque([1.0] * held, maxlen=held)
        self._read_s, self._sum, self._count = 0.0, 0.0, 0
        self._step = len(steps) - 1
        self._schedule = self._make()

    def __call__(self, engines: Sequence[Engine], now_s: float, tokens: float) -> int:
        slots = sum(engine.slots for engine in engines)
        self._sum += sum(len(engine.running) for engine in engines) / slots
        self._count += 1
        if now_s - self._read_s >= self._every_s:
            self._readings.append(self._sum / self._count)
            self._read_s, self._sum, self._count = now_s, 0.0, 0
            self._follow(max(self._readings))
        return self._schedule(engines, now_s, tokens)

    def _follow(self, utilisation: float) -> None:
        step = 0
        while step < len(self._steps) - 1:
            margin = self._hysteresis if step < self._step else 0.0
            if utilisation <= self._steps[step][0] - margin:
                break
            step += 1
        if step != self._step:
            self._step = step
            self._schedule = self._make()

    def _make(self) -> EnvoySchedule:
        _, exponent, bias = self._steps[self._step]
        return EnvoySchedule([c**exponent for c in self._capacities], bias)


class Aliases:
    """Each engine shown as several equal endpoints; Envoy's full scan picks the idlest of them.

    An alias knows only the requests that were sent to itself.
    """

    def __init__(self, counts: Sequence[int], seed: int = 0) -> None:
        self._aliases = [index for index, count in enumerate(counts) for _ in range(count)]
        self._chance = random.Random(seed)
        self._sent: list[list[int]] = [[] for _ in self._aliases]  # request numbers by alias
        self._number = 0

    def __call__(self, engines: Sequence[Engine], _now_s: float, _tokens: float) -> int:
        alive = [set(engine.running) | set(engine.waiting) for engine in engines]
        active = []
        for alias, engine in enumerate(self._aliases):
            self._sent[alias] = [n for n in self._sent[alias] if n in alive[engine]]
            active.append(len(self._sent[alias]))
        least = min(active)
        chosen = self._chance.choice([a for a, count in enumerate(active) if count == least])
        self._sent[chosen].append(self._number)
        self._number += 1
        return self._aliases[chosen]


class TwoChoices:
    """Envoy's LEAST_REQUEST over equal weights: the idler of two hosts drawn by chance."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def __call__(self, engines: Sequence[Engine], _now_s: float, _tokens: float) -> int:
        one, other = (self._chance.randrange(len(engines)) for _ in range(2))
        return one if engines[one].active <= engines[other].active else other


def least_connections(weights: Sequence[float]) -> Choose:
    """Return HAProxy's weighted leastconn: fewest connections per weight over all hosts."""

    def choose(engines: Sequence[Engine], _now_s: float, _tokens: float) -> int:
        return min(range(len(engines)), key=lambda i: (engines[i].active + 1) / weights[i])

    return choose


def shortest_expected_delay(engines: Sequence[Engine], now_s: float, tokens: float) -> int:
    """Choose as one who knows every length: a yardstick that no balancer can be."""

    def delay(engine: Engine) -> float:
        if len(engine.running) < engine.slots:
            return tokens / engine.rate(len(engine.running) + 1)
        ahead = sum(engine.running.values()) + tokens * len(engine.waiting)
        return ahead / engine.capacity + tokens / engine.rate(engine.slots)

    return min(range(len(engines)), key=lambda index: delay(engines[index]))

"""Engines that batch, as a queue: what a balancer would do to the times of one trace.

Pure and exact: events only, no clock. An engine of speed s runs up to `slots` requests at once;
each gets tokens at the rate s / slowdown(running), where a full batch takes `full_batch_slowdown`
times as long per token as a single request. What does not fit waits in the order it came.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Request:
    """One arrival: when, and how many tokens it asks for."""

    at_s: float
    tokens: float


@dataclass(slots=True)
class Engine:
    """One engine and what it holds."""

    speed: float  # tokens per second of a single request
    slots: int
    full_batch_slowdown: float
    running: dict[int, float] = field(default_factory=dict)  # request → tokens left
    waiting: deque[int] = field(default_factory=deque)
    updated_s: float = 0.0

    @property
    def active(self) -> int:
        return len(self.running) + len(self.waiting)

    def rate(self, running: int) -> float:
        """Return the tokens per second that each of `running` requests gets."""
        share = (running - 1) / max(1, self.slots - 1)
        return self.speed / (1 + (self.full_batch_slowdown - 1) * share)

    @property
    def capacity(self) -> float:
        """Tokens per second of a full batch."""
        return self.slots * self.rate(self.slots)

    def advance(self, now_s: float) -> None:
        """Let time pass."""
        if self.running:
            done = (now_s - self.updated_s) * self.rate(len(self.running))
            for request in self.running:
                self.running[request] -= done
        self.updated_s = now_s

    def next_end(self) -> tuple[float, int] | None:
        """Return when which running request ends if nothing else happens."""
        if not self.running:
            return None
        request = min(self.running, key=self.running.__getitem__)
        left = max(0.0, self.running[request])
        return self.updated_s + left / self.rate(len(self.running)), request


Choose = Callable[[Sequence[Engine], float, float], int]  # engines, now, tokens → index


def simulate(engines: Sequence[Engine], trace: Sequence[Request], choose: Choose) -> list[float]:
    """Return the time from arrival to end of every request of a trace, in seconds."""
    times = [math.nan] * len(trace)
    tokens = [request.tokens for request in trace]
    for number, request in enumerate(trace):
        _run_until(engines, request.at_s, trace, times, tokens)
        for engine in engines:
            engine.advance(request.at_s)
        engine = engines[choose(engines, request.at_s, request.tokens)]
        if len(engine.running) < engine.slots:
            engine.running[number] = request.tokens
        else:
            engine.waiting.append(number)
    _run_until(engines, math.inf, trace, times, tokens)
    return times


def _run_until(
    engines: Sequence[Engine],
    until_s: float,
    trace: Sequence[Request],
    times: list[float],
    tokens: Sequence[float],
) -> None:
    for engine in engines:
        while (end := engine.next_end()) is not None and end[0] <= until_s:
            at_s, request = end
            engine.advance(at_s)
            del engine.running[request]
            times[request] = at_s - trace[request].at_s
            if engine.waiting:
                following = engine.waiting.popleft()
                engine.running[following] = tokens[following]


def poisson_trace(
    *, rate_per_s: float, count: int, mean_tokens: float, seed: int, sigma: float = 0.8
) -> list[Request]:
    """Return open-loop Poisson arrivals with log-normal lengths of this mean."""
    chance = random.Random(seed)
    mu = math.log(mean_tokens) - sigma * sigma / 2
    at_s, trace = 0.0, []
    for _ in range(count):
        at_s += chance.expovariate(rate_per_s)
        trace.append(Request(at_s, max(1.0, chance.lognormvariate(mu, sigma))))
    return trace


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
    """EnvoySchedule whose exponent and bias follow the utilisation that was measured last.

    Utilisation is read every `every_s`, as the share of all slots that hold a request, averaged
    over that time; the exponent changes only when it left a band of `hysteresis` around the step.
    """

    def __init__(
        self,
        capacities: Sequence[float],
        steps: Sequence[tuple[float, float]],
        *,
        every_s: float = 5.0,
        hysteresis: float = 0.03,
    ) -> None:
        self._capacities = capacities
        self._steps = steps  # (up to this utilisation, exponent and bias), rising
        self._every_s, self._hysteresis = every_s, hysteresis
        self._read_s, self._sum, self._count = 0.0, 0.0, 0
        self._exponent = steps[0][1]
        self._schedule = self._make(self._exponent)

    def __call__(self, engines: Sequence[Engine], now_s: float, tokens: float) -> int:
        slots = sum(engine.slots for engine in engines)
        self._sum += sum(len(engine.running) for engine in engines) / slots
        self._count += 1
        if now_s - self._read_s >= self._every_s:
            self._follow(self._sum / self._count)
            self._read_s, self._sum, self._count = now_s, 0.0, 0
        return self._schedule(engines, now_s, tokens)

    def _follow(self, utilisation: float) -> None:
        for limit, exponent in self._steps:
            edge = limit + (self._hysteresis if exponent <= self._exponent else -self._hysteresis)
            if utilisation <= edge:
                break
        if exponent != self._exponent:
            self._exponent = exponent
            self._schedule = self._make(exponent)

    def _make(self, exponent: float) -> "EnvoySchedule":
        return EnvoySchedule([c**exponent for c in self._capacities], exponent)


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

"""Engines that batch, as a queue: what a balancer would do to the times of one trace.

Pure and exact: events only, no clock. An engine of speed s runs up to `slots` requests at once;
each gets tokens at the rate s / slowdown(running), where a full batch takes `full_batch_slowdown`
times as long per token as a single request. What does not fit waits in the order it came.
"""

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

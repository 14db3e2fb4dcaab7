"""The fleet and the arrivals that balancers are compared on, live and in the queueing model.

Four engines of speed 1:2:4:8, each with 16 slots or with slots in proportion to its speed.
"""

from tests.load.queueing import Engine, Request, poisson_trace

SPEEDS = (1, 2, 4, 8)
SLOTS = {"equal": (16, 16, 16, 16), "proportional": (4, 8, 16, 32)}
LOADS = (0.6, 0.8, 0.9)  # of the capacity of all engines with full batches
MEAN_TOKENS = 15
STEP_S = 0.040  # of one token on the slowest engine
UNLOADED_MEAN_S = (
    MEAN_TOKENS * STEP_S * len(SPEEDS) / sum(SPEEDS)
)  # alone on an engine of mean speed


def fleet(kind: str) -> list[Engine]:
    """Return the engines as the queueing model has them: a batch of 64 doubles a step's time."""
    return [
        Engine(speed / STEP_S, held, 1 + (held - 1) / 64)
        for speed, held in zip(SPEEDS, SLOTS[kind], strict=True)
    ]


def arrivals_per_s(load: float, kind: str) -> float:
    """Return the rate of requests that is this share of the fleet's capacity."""
    return load * sum(engine.capacity for engine in fleet(kind)) / MEAN_TOKENS


def trace_of(load: float, kind: str, count: int, seed: int) -> list[Request]:
    """Return so many arrivals at this share of the fleet's capacity."""
    return poisson_trace(
        rate_per_s=arrivals_per_s(load, kind), count=count, mean_tokens=MEAN_TOKENS, seed=seed
    )

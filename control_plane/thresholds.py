"""Circuit-breaker thresholds from how many requests the engines of a pool may hold.

All fields are always at least 1: Envoy reads 0 as "refuse everything", and an unset one as 1024.
They travel by RTDS, so that an engine that comes or goes never touches a cluster; what a cluster
itself carries is FALLBACK, which holds only while no runtime layer has arrived.
"""

import math
from dataclasses import dataclass

DEFAULT_MAX_NUM_SEQS = 256  # vLLM's own default on data-centre GPUs
DEFAULT_MAX_QUEUE = 4.0
_MIN_CEILING = 1024  # of an edge
_EDGE_HEADROOM = 2
_HIGH_SHARE = 4  # requests of HIGH priority may hold a quarter more than the engines' own limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Circuit-breaker thresholds of one cluster and priority; every field at least 1."""

    max_connections: int
    max_pending_requests: int
    max_requests: int
    max_retries: int  # also the floor of the retry budget


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolThresholds:
    """Both of Envoy's routing priorities. They count apart: HIGH is room that nobody else takes."""

    default: Thresholds
    high: Thresholds


def engine_limit(max_num_seqs: int | None) -> int:
    """Return how many requests an engine may hold: what it batches, and a short queue.

    The queue keeps the batch full while Envoy learns that a sequence ended; an eighth of the
    batch (at least 2) is enough for that and short enough not to hide overload.
    """
    batch = DEFAULT_MAX_NUM_SEQS if max_num_seqs is None else max_num_seqs
    return batch + max(2, batch // 8)


def node_thresholds(held: int, max_queue: float) -> PoolThresholds:
    """Return the breakers that guard engines which hold `held` requests together.

    An engine speaks HTTP/1.1, so a connection is a request. `max_queue` requests for each of them
    may wait in Envoy. HIGH gets a quarter more on top; the engine queues it, by its own
    priorities.
    """
    high = -(-held // _HIGH_SHARE)
    return PoolThresholds(default=_node(held, max_queue), high=_node(high, max_queue))


def connections(held: int, max_queue: float) -> int:
    """Return how many connections may be open to engines that hold `held` requests.

    As many as requests, so that one too many waits for a connection. With no queue twice as many:
    one too many then gets a connection, and is refused on it at once.
    """
    return held if max_queue else 2 * held


def edge_thresholds(held: int, max_queue: float) -> PoolThresholds:
    """Return the edge's breakers of a pool whose engines hold `held` requests together.

    The nodes' breakers are the ones that guard the engines; the edge's are a ceiling against run-
    away callers: twice what the nodes take, rounded up to a power of two so that engines come and
    go without news for every edge.
    """
    taken = math.ceil(_EDGE_HEADROOM * max(1, held) * (2 + max_queue))
    ceiling = max(_MIN_CEILING, 1 << (taken - 1).bit_length())
    thresholds = Thresholds(
        max_connections=1024,
        max_pending_requests=ceiling,
        max_requests=ceiling,
        max_retries=max(16, ceiling // 16),
    )
    return PoolThresholds(default=thresholds, high=thresholds)


def _node(held: int, max_queue: float) -> Thresholds:
    """Every request counts as pending until its connection is up, so a burst needs room there."""
    held = max(1, held)
    return Thresholds(
        max_connections=connections(held, max_queue),
        max_pending_requests=held + math.ceil(held * max_queue),
        max_requests=held,
        max_retries=max(16, held),
    )


# What one engine with vLLM's defaults holds.
FALLBACK = node_thresholds(engine_limit(None), DEFAULT_MAX_QUEUE)
EDGE_FALLBACK = edge_thresholds(engine_limit(None), DEFAULT_MAX_QUEUE)

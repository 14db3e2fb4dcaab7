"""The queueing model that balancers are compared in: exact where the answer is known."""

import statistics

import pytest

from control_plane.weights import ACTIVE_REQUEST_BIASES, EXPONENTS
from tests.load.queueing import (
    Engine,
    EnvoySchedule,
    Request,
    least_connections,
    poisson_trace,
    shortest_expected_delay,
    simulate,
)


def alone(*_):
    return 0


def test_one_request_takes_its_tokens_over_the_speed():
    assert simulate([Engine(10, 4, 2.0)], [Request(1.0, 30)], alone) == [3.0]


def test_a_full_batch_is_slower_by_the_stated_factor_and_the_next_waits():
    engine = Engine(10, 2, 2.0)
    times = simulate([engine], [Request(0, 10), Request(0, 10), Request(0, 10)], alone)
    assert times == pytest.approx([2.0, 2.0, 3.0])
    assert engine.capacity == 10


def test_weighted_round_robin_follows_weights_exactly():
    engines = [Engine(1e9, 10, 1.0), Engine(1e9, 10, 1.0)]
    schedule = EnvoySchedule([100, 300], bias=0)
    picks = [schedule(engines, 0, 1) for _ in range(400)]
    assert picks.count(1) == 300


def test_the_trace_has_the_asked_rate_and_length():
    trace = poisson_trace(rate_per_s=50, count=20_000, mean_tokens=60, seed=1)
    assert trace[-1].at_s == pytest.approx(400, rel=0.05)
    assert statistics.fmean(r.tokens for r in trace) == pytest.approx(60, rel=0.05)


@pytest.mark.parametrize("load", [0.6, 0.8, 0.9])
def test_our_balance_beats_weights_by_capacity_at_every_load(load):
    """The model agrees with what was measured on real Envoys: mean and p99 both, at each load."""
    speeds = (1, 2, 4, 8)

    def times(choose):
        engines = [Engine(40 * speed, 16, 2.0) for speed in speeds]
        rate = load * sum(engine.capacity for engine in engines) / 60
        trace = poisson_trace(rate_per_s=rate, count=6000, mean_tokens=60, seed=3)
        found = sorted(simulate(engines, trace, choose)[600:])
        return statistics.fmean(found), found[int(len(found) * 0.99)]

    exponent, bias = EXPONENTS["latency"], ACTIVE_REQUEST_BIASES["latency"]
    mean, p99 = times(EnvoySchedule([speed**exponent for speed in speeds], bias))
    base_mean, base_p99 = times(EnvoySchedule(speeds, 1))
    assert mean <= 0.95 * base_mean
    assert p99 <= 0.85 * base_p99
    assert times(shortest_expected_delay)[1] < p99
    assert times(least_connections(speeds))[1] < base_p99

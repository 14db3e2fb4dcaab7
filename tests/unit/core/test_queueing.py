"""The queueing model that balancers are compared in: exact where the answer is known."""

import statistics

import pytest

from control_plane.weights import ACTIVE_REQUEST_BIASES, EXPONENTS
from tests.load.balancers import (
    Aliases,
    EnvoySchedule,
    FollowingUtilisation,
    least_connections,
    shortest_expected_delay,
)
from tests.load.queueing import Engine, Request, poisson_trace, simulate


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


def test_aliases_share_by_their_number_while_requests_stay():
    engines = [Engine(1e-9, 100, 1.0), Engine(1e-9, 100, 1.0)]
    trace = [Request(0.0, 1.0)] * 40
    aliases, picks = Aliases((1, 3)), []

    def choose(*arguments):
        picks.append(aliases(*arguments))
        return picks[-1]

    simulate(engines, trace, choose)
    assert picks.count(1) == 30


def busy(fraction):
    """Two engines of 10 slots, of which this fraction runs something."""
    engines = [Engine(1.0, 10, 1.0), Engine(9.0, 10, 1.0)]
    for engine in engines:
        engine.running = dict.fromkeys(range(round(10 * fraction)), 1.0)
    return engines


def test_a_schedule_that_follows_is_steep_late_and_mild_at_once():
    follows = FollowingUtilisation([1, 9], [(0.5, 4, 3), (9, 0, 0)], every_s=5, held=3)

    def share(fraction, start_s, count):
        return sum(follows(busy(fraction), start_s + i, 1.0) for i in range(count)) / count

    assert share(0.2, 0, 10) == 0.5  # equal weights: it counts as full until it is known
    assert share(0.2, 10, 20) > 0.6  # after the third reading
    assert share(0.2, 30, 20) > 0.9
    assert share(0.9, 50, 6) > 0.8  # until the next reading
    assert share(0.9, 56, 20) == 0.5
    assert share(0.48, 76, 60) == 0.5  # below the limit, but not by the hysteresis


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

"""The benchmarks' table: ratios to one row of the same run, and losses named."""

import math

from tests.load.balance_report import REFERENCE, table
from tests.load.queueing import Aliases, Engine, FollowingUtilisation, Request, simulate


def figures(mean, p99=1.0, lost=0.0):
    return {"mean_s": mean, "p50_s": mean, "p99_s": p99, "goodput": 0.5, "unfinished": lost}


def test_rows_are_ratios_to_the_reference_by_median():
    found = {
        "60%": {
            REFERENCE: [figures(2.0), figures(2.0)],
            "ours": [figures(1.0), figures(1.4)],
            "lost": [figures(8.0, math.inf, 0.25)] * 2,
        }
    }
    _, reference, ours, lost = table(found).splitlines()
    assert reference.split()[-4:] == ["1.00", "1.00", "1.00", "50%"]
    assert ours.split()[-4:] == ["0.60", "0.60", "1.00", "50%"]
    assert lost.split()[-5:] == ["4.00", "-", "50%", "(25%", "lost)"]


def engines():
    return [Engine(10.0, 4, 1.5), Engine(40.0, 4, 1.5)]


def test_virtual_endpoints_of_idle_engines_are_used_by_their_number():
    trace = [Request(float(i), 1.0) for i in range(300)]  # one at a time
    chosen = []
    aliases = Aliases((1, 3))
    simulate(engines(), trace, lambda *args: chosen.append(aliases(*args)) or chosen[-1])
    assert 0.65 < sum(chosen) / len(chosen) < 0.85


def test_an_exponent_follows_the_utilisation_and_not_every_wiggle():
    balancer = FollowingUtilisation((1, 4), ((0.5, 4), (9, 2)), every_s=1.0)
    idle, busy = engines(), engines()
    for engine in busy:
        engine.running = dict.fromkeys(range(4), 1.0)
    for second in range(3):
        balancer(busy, second * 1.0, 1.0)
    assert balancer._exponent == 2
    for engine in idle:
        engine.running = {0: 1.0, 1: 1.0}  # 50 %: within the band around the step
    for second in range(3, 6):
        balancer(idle, second * 1.0, 1.0)
    assert balancer._exponent == 2
    for engine in idle:
        engine.running = {}
    for second in range(6, 12):
        balancer(idle, second * 1.0, 1.0)
    assert balancer._exponent == 4

"""Turns for new streams: a burst at once, the rest at a rate, first come first served, bounded."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.connect_rate import ConnectBucket, ConnectRate

RATE = ConnectRate(streams_per_s=10.0, burst_streams=5, max_wait_s=1.0)


def waits(count, at_s=0.0, bucket=None):
    bucket = bucket or ConnectBucket(RATE)
    return [bucket.take(at_s) for _ in range(count)]


def test_a_burst_comes_in_at_once_and_the_rest_one_by_one():
    assert waits(8) == pytest.approx([0, 0, 0, 0, 0, 0.1, 0.2, 0.3])


def test_who_would_wait_too_long_is_turned_away_and_takes_nobodys_turn():
    bucket = ConnectBucket(RATE)
    assert waits(15, bucket=bucket)[-1] == pytest.approx(1.0)
    assert waits(100, bucket=bucket) == [None] * 100
    assert bucket.take(0.2) == pytest.approx(0.9)


def test_a_quiet_time_fills_the_burst_again_and_no_more_than_it():
    bucket = ConnectBucket(RATE)
    waits(5, bucket=bucket)
    assert waits(3, 0.2, bucket) == pytest.approx([0, 0, 0.1])
    assert waits(6, 1000.0, bucket) == pytest.approx([0, 0, 0, 0, 0, 0.1])


def test_by_default_a_thousand_at_once_are_all_in_within_2_s():
    bucket = ConnectBucket(ConnectRate())
    found = [bucket.take(7.0) for _ in range(1000)]
    assert found.count(0.0) == 400
    assert max(found) == pytest.approx(2.0)


@given(st.lists(st.floats(0, 0.5), max_size=60))
def test_turns_come_in_order_and_no_faster_than_the_rate(gaps_s):
    bucket, now_s = ConnectBucket(RATE), 0.0
    opened = []
    for gap_s in gaps_s:
        now_s += gap_s
        wait_s = bucket.take(now_s)
        if wait_s is not None:
            assert 0 <= wait_s <= RATE.max_wait_s
            opened.append(now_s + wait_s)
    assert opened == sorted(opened)
    for first, last in itertools.combinations(range(len(opened)), 2):
        allowed = RATE.burst_streams + RATE.streams_per_s * (opened[last] - opened[first])
        assert last - first < allowed + 1e-6

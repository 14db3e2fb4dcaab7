"""Circuit-breaker thresholds: never 0, never unset, and room for what the engines hold."""

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.thresholds import (
    DEFAULT_MAX_NUM_SEQS,
    edge_thresholds,
    engine_limit,
    node_thresholds,
)


@pytest.mark.parametrize(
    ("max_num_seqs", "limit"),
    [(16, 18), (1, 3), (256, 288), (None, DEFAULT_MAX_NUM_SEQS + 32)],
)
def test_an_engine_holds_its_batch_and_a_short_queue(max_num_seqs, limit):
    assert engine_limit(max_num_seqs) == limit


@pytest.mark.case("H5")
@given(st.integers(0, 1_000_000), st.floats(0, 1000))
def test_h5_every_threshold_is_at_least_1(held, max_queue):
    for pool in (node_thresholds(held, max_queue), edge_thresholds(held, max_queue)):
        for thresholds in (pool.default, pool.high):
            assert all(isinstance(value, int) and value >= 1 for value in astuple(thresholds))


@pytest.mark.case("H5")
def test_h5_a_limit_of_5000_is_really_allowed():
    thresholds = node_thresholds(5000, 1.0).default
    assert (thresholds.max_connections, thresholds.max_requests) == (5000, 5000)
    assert thresholds.max_pending_requests == 10_000  # all of a first burst, and the queue


def test_with_no_queue_what_is_too_many_gets_a_connection_and_is_refused():
    thresholds = node_thresholds(3, 0).default
    assert (thresholds.max_requests, thresholds.max_connections) == (3, 6)


def test_high_priority_has_room_of_its_own_a_quarter_of_the_engines():
    assert node_thresholds(16, 1.0).high.max_requests == 4
    assert node_thresholds(1, 1.0).high.max_requests == 1


@given(st.integers(1, 1_000_000), st.floats(0, 100))
def test_an_edge_never_refuses_what_its_nodes_would_take(held, max_queue):
    node, edge = node_thresholds(held, max_queue).default, edge_thresholds(held, max_queue).default
    assert edge.max_requests >= node.max_requests + node.max_pending_requests


def test_an_engine_more_or_less_is_seldom_news_for_the_edges():
    assert edge_thresholds(900, 4.0) == edge_thresholds(901, 4.0)

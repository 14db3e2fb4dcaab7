"""Rates of the policy as token buckets: exact, in terms that Envoy takes."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.errors import InputError
from control_plane.limits import RequestLimit, TokenBucket, parse_rate, token_bucket
from control_plane.policy import parse_policy
from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry


@pytest.mark.parametrize(
    ("text", "per_s"),
    [
        ("50/s", 50),
        ("600/m", 10),
        ("2.5/s", Fraction(5, 2)),
        ("1/30ms", Fraction(100, 3)),
        ("3 / 2s", Fraction(3, 2)),
        ("36/h", Fraction(1, 100)),
    ],
)
def test_rates(text, per_s):
    assert parse_rate(text) == per_s


@pytest.mark.parametrize("value", ["50", 50, "0/s", "1/0s", "-1/s", "1/d", "/s", "", None, "٣/s"])
def test_a_rate_needs_a_unit_and_is_above_0(value):
    with pytest.raises(ValueError, match="a rate above 0 with a unit"):
        parse_rate(value)


@pytest.mark.parametrize("value", ["0.000001/999999999h", "1/25h"])
def test_a_rate_is_at_least_one_a_day(value):
    with pytest.raises(ValueError, match="at least"):
        parse_rate(value)
    least = token_bucket(RequestLimit(rate_per_s_per_a100=parse_rate("1/24h")), 0.001)
    assert least.tokens_per_fill / least.fill_interval_s == pytest.approx(1 / 86_400)


@pytest.mark.case("H1")
def test_h1_an_interval_below_50_ms_is_rewritten():
    bucket = token_bucket(RequestLimit(rate_per_s=parse_rate("1/30ms")), 100)
    assert (bucket.tokens_per_fill, bucket.fill_interval_s) == (2, 0.06)


def test_without_a_burst_two_seconds_of_the_rate_may_come_at_once():
    bucket = token_bucket(RequestLimit(rate_per_s=Fraction(50)), 100)
    assert bucket == TokenBucket(max_tokens=100, tokens_per_fill=3, fill_interval_s=0.06)


@pytest.mark.parametrize(("capacity", "per_s"), [(100, 5.0), (423, 21.0), (10, 0.5)])
def test_a_share_of_capacity_follows_what_lives(capacity, per_s):
    bucket = token_bucket(RequestLimit(rate_per_s_per_a100=Fraction(5)), capacity)
    assert bucket.tokens_per_fill / bucket.fill_interval_s == pytest.approx(per_s)


def test_no_limit_and_no_engine_have_no_bucket():
    assert token_bucket(None, 100) is None
    assert token_bucket(RequestLimit(rate_per_s_per_a100=Fraction(5)), 0) is None


@given(
    st.fractions(Fraction(1, 86_400), 10**9),
    st.none() | st.integers(1, 10**9),
    st.floats(0.1, 1e9),
    st.booleans(),
)
def test_every_bucket_is_one_that_envoy_takes(rate, burst, capacity, absolute):
    limit = (
        RequestLimit(rate_per_s=rate, burst=burst)
        if absolute
        else RequestLimit(rate_per_s_per_a100=rate, burst=burst)
    )
    bucket = token_bucket(limit, capacity)
    if bucket is None:
        return
    assert 1 <= bucket.max_tokens < 2**32
    assert 1 <= bucket.tokens_per_fill < 2**32
    assert bucket.fill_interval_s >= 0.05
    if absolute and rate < 10**9:
        assert bucket.tokens_per_fill / bucket.fill_interval_s == pytest.approx(float(rate))


POLICY = """
request_limit: {rate: 100/s}
defaults: {request_limit: {rate_per_a100: 5/s}}
models: {acme/fox: {request_limit: {rate: 10/s, burst: 12}}}
"""


def test_each_model_has_a_bucket_and_the_fleet_one_over_all():
    plan = make_plan(
        consul_entry("n1.e1", socket="/run/1.sock"),
        consul_entry("n1.e2", socket="/run/2.sock", model="acme/owl", gpu_power="300"),
        policy=POLICY,
    )
    fox, owl = plan.models
    assert fox.request_limit.max_tokens == 12
    assert owl.request_limit.tokens_per_fill / owl.request_limit.fill_interval_s == 15
    assert plan.request_limit.max_tokens == 200
    assert plan.limited


@pytest.mark.parametrize(
    ("limit", "path", "expected"),
    [
        ("{}", "", "either rate or rate_per_a100"),
        ("{rate: 1/s, rate_per_a100: 1/s}", "", "either rate or rate_per_a100"),
        ("{rate: 10}", ".rate", "with a unit"),
        ("{rate: 1/s, burst: 0}", ".burst", "greater than or equal to 1"),
        ("{rate: 1/s, bursts: 1}", ".bursts", "no such field"),
    ],
)
def test_limits_that_cannot_be_read(limit, path, expected):
    with pytest.raises(InputError) as error:
        parse_policy(f"request_limit: {limit}".encode(), source="policy.yaml")
    (problem,) = error.value.problems
    assert problem.path == f"request_limit{path}"
    assert expected in problem.expected

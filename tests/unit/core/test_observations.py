"""Scrapes of old and new engines: what is not said is unknown, and nothing crashes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.observations import Observation, parse_observation
from engines.simulator.metrics import EngineMetrics

NEW = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="acme/fox"} 3.0
vllm:num_requests_waiting{engine="0",model_name="acme/fox"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="acme/fox"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="acme/fox"} 1000.0
vllm:prompt_tokens_created{engine="0",model_name="acme/fox"} 1.7e9
vllm:generation_tokens_total{engine="0",model_name="acme/fox"} 500.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.1",model_name="acme/fox"} 9.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="acme/fox"} 7.5
vllm:inter_token_latency_seconds_count{engine="0",model_name="acme/fox"} 450.0
python_gc_objects_collected_total{generation="0"} 9.0
"""
OLD = b"""vllm:num_requests_running{model_name="m"} 2.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:generation_tokens_total{model_name="m"} 80.0
vllm:time_per_output_token_seconds_sum{model_name="m"} 4.0
vllm:time_per_output_token_seconds_count{model_name="m"} 70.0
"""


def test_a_current_engine_says_everything():
    assert parse_observation(NEW, 9.0) == Observation(
        at_s=9.0,
        prompt_tokens=1000,
        generation_tokens=500,
        running=3,
        waiting=1,
        kv_cache_usage=0.25,
        token_gaps_s=7.5,
        token_gaps=450,
    )


def test_an_old_engine_uses_other_names_and_says_less():
    assert parse_observation(OLD, 0.0) == Observation(
        at_s=0.0,
        generation_tokens=80,
        running=2,
        kv_cache_usage=0.5,
        token_gaps_s=4,
        token_gaps=70,
    )


def test_ranks_are_summed_and_the_fullest_cache_counts():
    text = NEW + NEW.replace(b'engine="0"', b'engine="1"').replace(b"0.25", b"0.75")
    found = parse_observation(text, 0.0)
    assert (found.running, found.generation_tokens, found.kv_cache_usage) == (6, 1000, 0.75)


def test_the_simulated_engine_is_read_like_vllm():
    metrics = EngineMetrics('a "quoted"\\ name')
    metrics.generation_tokens.inc(7)
    metrics.inter_token_latency.observe(0.5)
    found = parse_observation(metrics.render(), 0.0)
    assert (found.generation_tokens, found.token_gaps, found.token_gaps_s) == (7, 1, 0.5)
    assert found.waiting == 0


@pytest.mark.parametrize(
    "value", ["NaN", "+Inf", "-1"], ids=["not a number", "infinite", "negative"]
)
def test_a_value_that_cannot_be_is_unknown(value):
    text = f'vllm:num_requests_running{{engine="0"}} {value}\n'.encode()
    assert parse_observation(text, 0.0).running is None


@pytest.mark.parametrize(
    "text",
    [
        b"vllm:num_requests_running{",
        b'vllm:num_requests_running{engine="0"} three',
        b"vllm:num_requests_running \xff",
    ],
)
def test_text_that_is_something_else_is_no_observation(text):
    assert parse_observation(text, 0.0) is None


def test_an_engine_without_any_of_it_is_unknown_not_idle():
    assert parse_observation(b"<html>404</html>", 1.0) == Observation(at_s=1.0)


@given(st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_read_or_refused(data):
    for text in (data, b"vllm:num_requests_running{" + data, b"vllm:prompt_tokens_total " + data):
        found = parse_observation(text, 0.0)
        assert found is None or isinstance(found, Observation)

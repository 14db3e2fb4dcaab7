"""The speed of a simulated engine follows its card's numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.gpu import load_gpu_table
from engines.simulator.service_model import count_tokens, service_model

GPUS = load_gpu_table()


def model(gpu=None, gpu_power=None, speedup=1.0):
    return service_model(GPUS, gpu=gpu, gpu_power=gpu_power, speedup=speedup)


def test_the_reference_card_by_the_documented_formulas():
    reference = model("NVIDIA A100-SXM4-80GB")
    assert reference.prefill_tokens_per_s == pytest.approx(312e12 * 0.5 / (2 * 8e9))
    assert reference.step_time_s(0, 1) == pytest.approx(16e9 / 2039e9)
    assert reference.step_time_s(0, 65) == pytest.approx(2 * reference.step_time_s(0, 1))
    prompts_s = 2000 / reference.prefill_tokens_per_s
    assert reference.step_time_s(2000, 65) == pytest.approx(prompts_s + 2 * 16e9 / 2039e9)


def test_decode_follows_bandwidth_and_prefill_compute():
    l4, l40s = model("NVIDIA L4"), model("NVIDIA L40S")
    assert l4.step_time_s(0, 1) / l40s.step_time_s(0, 1) == pytest.approx(864 / 300)
    assert l40s.prefill_tokens_per_s / l4.prefill_tokens_per_s == pytest.approx(362 / 121)


def test_declared_power_wins_and_scales_the_reference():
    assert model("NVIDIA L4", gpu_power=300).step_s == pytest.approx(model().step_s / 3)


def test_an_unknown_card_serves_as_the_reference():
    assert model("Voodoo 2") == model() == model("NVIDIA A100-SXM4-80GB")


def test_speedup_divides_all_times():
    fast, slow = model(speedup=10), model()
    assert fast.step_time_s(0, 5) == pytest.approx(slow.step_time_s(0, 5) / 10)
    assert fast.step_time_s(100, 1) == pytest.approx(slow.step_time_s(100, 1) / 10)


@given(st.floats(1, 1000), st.integers(1, 1000), st.integers(0, 100_000))
def test_times_are_positive_and_grow_with_the_work(gpu_power, sequences, prompt_tokens):
    built = model(gpu_power=gpu_power)
    took_s = built.step_time_s(prompt_tokens, sequences)
    assert 0 < took_s < built.step_time_s(prompt_tokens + 1, sequences)
    assert took_s < built.step_time_s(prompt_tokens, sequences + 1)
    assert built.kv_cache_tokens > 0


@pytest.mark.parametrize(
    ("gpu", "tokens"),
    [
        ("NVIDIA L4", 2048),
        ("NVIDIA A100-SXM4-80GB", 2048),  # vLLM's exception
        ("NVIDIA H100 80GB HBM3", 8192),
        ("NVIDIA B200", 16_384),
    ],
)
def test_a_steps_budget_is_vllms_default_on_the_card(gpu, tokens):
    assert model(gpu).max_num_batched_tokens == tokens


@pytest.mark.parametrize(("text", "tokens"), [("", 1), ("abcd", 1), ("abcde", 2), ("é" * 8, 2)])
def test_tokens(text, tokens):
    assert count_tokens(text) == tokens

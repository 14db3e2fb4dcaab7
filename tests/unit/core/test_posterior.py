"""Beliefs about capacity: learnt under load alone, damped, bounded, and the same in any order."""

import itertools
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from control_plane.capacity import Capacity
from control_plane.observations import Observation
from control_plane.posterior import Bounds, Posterior, Sample, correct, learn, measure

A100 = Capacity(
    prefill_tokens_per_s=9750.0,
    decode_tokens_per_s=2854.0,
    parallel_efficiency=1.0,
    prefill_cap_factor=1.0,
    decode_cap_factor=1.0,
)
BOUNDS = Bounds()
WINDOW_S = 5.0


def window(true, running, *, start=1000.0, prompts_per_token=0.0, told=True, waiting=0.0):
    """Return two scrapes of an engine of this capacity, with so many sequences all the time."""
    per_step = prompts_per_token * running
    gap_s = true.token_gap_s(running, per_step)
    tokens = running * WINDOW_S / gap_s

    def at(share):
        return Observation(
            at_s=start + share * WINDOW_S,
            prompt_tokens=7 + share * tokens * prompts_per_token,
            generation_tokens=9 + share * tokens,
            running=running,
            waiting=waiting,
            token_gaps_s=3 + share * tokens * gap_s if told else None,
            token_gaps=4 + share * tokens if told else None,
        )

    return at(0), at(1)


def sampled(declared, true, running=8.0, **more):
    return measure(*window(true, running, **more), declared)


@pytest.mark.parametrize("running", [1.0, 3.0, 16.0, 64.0])
@pytest.mark.parametrize("prompts", [0.0, 4.0])
@pytest.mark.parametrize("speed", [0.25, 1.0, 3.0])
def test_the_ratio_is_that_of_the_speeds_at_any_load(running, prompts, speed):
    sample = sampled(A100, A100.scaled(speed), running, prompts_per_token=prompts)
    assert math.exp(sample.log_ratio) == pytest.approx(speed)
    assert sample.running == pytest.approx(running)


def test_without_the_histogram_a_full_batch_tells_it_and_nothing_else_does():
    full = sampled(A100, A100.scaled(0.5), 16.0, told=False, waiting=2.0)
    assert math.exp(full.log_ratio) == pytest.approx(0.5)
    assert isinstance(sampled(A100, A100, 16.0, told=False), str)


@pytest.mark.parametrize(
    ("running", "more"),
    [
        pytest.param(0.5, {}, id="busy half of the time"),
        pytest.param(0.001, {}, id="a token now and then"),
    ],
)
def test_an_idle_engine_teaches_nothing(running, more):
    assert "idle" in sampled(A100, A100.scaled(0.1), running, **more)


def test_an_engine_that_started_over_teaches_nothing():
    before, after = window(A100, 8.0)
    assert "started over" in measure(after, Observation(at_s=after.at_s + 5), A100)
    restarted = Observation(at_s=after.at_s + 5, generation_tokens=3.0, token_gaps=2.0)
    assert "started over" in measure(after, restarted, A100)
    assert "too close" in measure(before, before, A100)


def rounds(pool, declared, true, count, running=8.0):
    """Learn `count` rounds of a pool of engines; return the factors after each."""
    history = []
    for _ in range(count):
        for name in declared:
            sample = sampled(A100.scaled(declared[name]), A100.scaled(true[name]), running)
            pool[name] = learn(pool.get(name), f"{declared[name]}", sample)
        pool.update(correct(pool, BOUNDS))
        history.append({name: pool[name].factor for name in declared})
    return history


def test_a_card_declared_four_times_too_strong_is_repaired_within_a_minute():
    declared, true = {"a": 1, "b": 2, "c": 4, "d": 4}, {"a": 1, "b": 2, "c": 4, "d": 1}
    pool: dict[str, Posterior] = {}
    history = rounds(pool, declared, true, 12)  # at 5 s
    for name, power in declared.items():
        assert power * history[-1][name] == pytest.approx(true[name], rel=0.15)
    steps = [one["d"] / two["d"] for one, two in itertools.pairwise(history)]
    assert max(steps) <= 1.5001  # and not in one leap


def test_the_models_size_is_not_taken_for_the_engines_fault():
    """A model of nine times the parameters is nine times slower on every card."""
    declared = {"a": 1, "b": 2, "c": 4}
    true = {name: value / 9 for name, value in declared.items()}
    assert rounds({}, declared, true, 6)[-1] == {"a": 1, "b": 1, "c": 1}


def test_of_two_engines_the_slower_is_the_one_in_doubt():
    history = rounds({}, {"a": 1, "b": 1}, {"a": 1, "b": 0.5}, 10)
    assert history[-1]["a"] == 1
    assert history[-1]["b"] == pytest.approx(0.5, rel=0.1)


def test_one_engine_alone_is_not_corrected():
    assert rounds({}, {"a": 1}, {"a": 0.2}, 10)[-1] == {"a": 1}


def test_a_correction_in_force_stays_while_the_samples_differ_little():
    pool: dict[str, Posterior] = {}
    rounds(pool, {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 0.5}, 12)
    settled = pool["c"].correction
    rounds(pool, {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 0.52}, 12)
    assert pool["c"].correction == settled
    assert rounds({}, {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 0.95}, 12)[-1]["c"] == 1


def test_another_declaration_starts_over():
    pool: dict[str, Posterior] = {}
    rounds(pool, {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 0.5}, 12)
    fresh = learn(pool["c"], "capped", "idle")
    assert (fresh.factor, fresh.samples, fresh.reason) == (1.0, 0, "idle")


def test_a_round_without_a_sample_keeps_what_is_known():
    known = learn(None, "x", Sample(log_ratio=0.3, running=2.0))
    assert learn(known, "x", "idle").log_ratio == 0.3


log_ratios = st.floats(-20, 20)
pools = st.dictionaries(
    st.sampled_from("abcdef"), st.lists(log_ratios, min_size=0, max_size=20), min_size=1
)


def learnt(samples):
    states = {}
    for name, values in samples.items():
        states[name] = learn(None, name, "not measured")
        for value in values:
            states[name] = learn(states[name], name, Sample(log_ratio=value, running=1.0))
    return states


@given(pools, st.floats(0.01, 1), st.floats(1, 10))
def test_a_correction_is_bounded_and_a_number(samples, lowest, highest):
    pool = learnt(samples)
    for _ in range(40):
        pool = correct(pool, Bounds(lowest=lowest, highest=highest))
    for state in pool.values():
        assert lowest * 0.999 <= state.factor <= highest * 1.001


@given(pools)
def test_the_order_of_engines_does_not_matter(samples):
    pool = learnt(samples)
    backwards = dict(reversed(pool.items()))
    assert correct(pool, BOUNDS) == correct(backwards, BOUNDS)


@given(pools, st.floats(-3, 3))
def test_the_pools_own_scale_does_not_matter(samples, scale):
    moved = {name: [value + scale for value in values] for name, values in samples.items()}
    one, other = correct(learnt(samples), BOUNDS), correct(learnt(moved), BOUNDS)
    for name in samples:
        assert one[name].target == pytest.approx(other[name].target, abs=1e-6)


numbers = st.none() | st.floats(0, 1.7e308)
observations = st.builds(
    Observation,
    at_s=st.floats(0, 1e9),
    prompt_tokens=numbers,
    generation_tokens=numbers,
    running=numbers,
    waiting=numbers,
    token_gaps_s=numbers,
    token_gaps=numbers,
)


@given(observations, observations)
@example(  # infinitely slower than expected
    Observation(at_s=0.0, prompt_tokens=0, generation_tokens=0, token_gaps=0, token_gaps_s=0),
    Observation(
        at_s=1.0, prompt_tokens=1e308, generation_tokens=1, token_gaps=100, token_gaps_s=1e10
    ),
)
def test_any_two_scrapes_give_a_finite_sample_or_a_reason(before, after):
    found = measure(before, after, A100)
    assert isinstance(found, str) or math.isfinite(found.log_ratio)

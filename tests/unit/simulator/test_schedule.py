"""The batch of a simulated engine, step by step: who shares a step, what it takes, who waits."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.gpu import load_gpu_table
from engines.simulator.schedule import Schedule, Sequence
from engines.simulator.service_model import ServiceModel, service_model

A100 = service_model(load_gpu_table(), gpu=None, gpu_power=None, speedup=1.0)
RATE = A100.prefill_tokens_per_s


def schedule(*sequences, seqs=256, budget=2048, model=A100):
    built = Schedule(model, max_num_seqs=seqs, max_num_batched_tokens=budget)
    for sequence in sequences:
        built.add(sequence)
    return built


def prompt(tokens, max_tokens=1, arrived_s=0.0):
    return Sequence(tokens, max_tokens, arrived_s)


def step(batch, now_s=0.0):
    """Run one step; return when it ended and what it brought."""
    ends_s = now_s + batch.begin(now_s)
    return ends_s, batch.end(ends_s)


def run(batch, now_s=0.0):
    """Run until there is nothing to do; return when that was."""
    while (took_s := batch.begin(now_s)) is not None:
        now_s += took_s
        batch.end(now_s)
    return now_s


@pytest.mark.parametrize("budget", [512, 2048, 8192])
def test_prompts_at_once_share_the_card(budget):
    alone_s = run(schedule(prompt(2000), budget=budget))
    together_s = run(schedule(*(prompt(2000) for _ in range(64)), budget=budget))
    assert together_s == pytest.approx(64 * alone_s, rel=0.06)
    assert together_s > 64 * 2000 / RATE  # nothing is faster than the card


def test_one_prompt_takes_its_compute_and_one_reading_of_the_weights():
    assert run(schedule(prompt(1000))) == pytest.approx(1000 / RATE + A100.step_s)


@pytest.mark.parametrize("running", [1, 2, 65, 256])
def test_without_prompts_a_step_takes_the_weights_and_the_cache_of_all(running):
    batch = schedule(*(prompt(1, max_tokens=5) for _ in range(running)))
    now_s, _ = step(batch)
    _, found = step(batch, now_s)
    assert len(found.continued) == running
    assert found.gap_s == pytest.approx(A100.step_s * (1 + (running - 1) / 64))


def test_a_long_prompt_slows_the_tokens_of_others_and_stops_none():
    talking, long = prompt(1, max_tokens=100), prompt(10_000)
    batch = schedule(talking)
    now_s, _ = step(batch)
    batch.add(long)
    gaps_s = []
    while not long.ended:
        now_s, found = step(batch, now_s)
        assert found.continued == (talking,)
        gaps_s.append(found.gap_s)
    assert len(gaps_s) == 5  # 10,000 tokens by at most 2,047 beside the one that talks
    assert all(gap_s > 1800 / RATE for gap_s in gaps_s)
    assert talking.made == 6


def test_the_batch_is_full_and_the_others_wait_in_the_order_they_came():
    first, second, third = (prompt(10, max_tokens=n) for n in (3, 1, 1))
    batch = schedule(first, second, third, seqs=2)
    now_s, found = step(batch)
    assert (found.started, found.finished) == ((first, second), (second,))
    assert (batch.running, batch.waiting) == (1, 1)
    _, found = step(batch, now_s)
    assert (found.started, found.continued) == ((third,), (first,))
    assert third.scheduled_s == now_s


@pytest.mark.parametrize("steps_before", [0, 1, 2, 3])
def test_one_that_is_removed_frees_its_slot_and_its_cache_at_once(steps_before):
    goes, follows = prompt(2048 + 10, max_tokens=50), prompt(1)
    batch, now_s = schedule(goes, follows, seqs=1), 0.0
    for _ in range(steps_before):
        now_s, _ = step(batch, now_s)
    ends_s = now_s + batch.begin(now_s)
    batch.remove(goes)
    assert (batch.running, batch.waiting, batch.kv_cache_usage) == (0, 1, 0)
    made = goes.made
    found = batch.end(ends_s)
    assert (found.started, found.continued, goes.made) == ((), (), made)
    _, found = step(batch, ends_s)
    assert found.finished == (follows,)


def test_one_that_is_removed_while_it_waits_is_never_run():
    waits = prompt(5)
    batch = schedule(prompt(1), waits, seqs=1)
    batch.remove(waits)
    run(batch)
    assert waits.made == 0


def test_a_full_cache_makes_the_next_wait_and_nobody_overtakes():
    room = A100.kv_cache_tokens
    first, large, small = prompt(10, room - 1010), prompt(10, 1000), prompt(1, 1)
    batch = schedule(first, large, small)
    step(batch)
    assert (batch.running, batch.waiting) == (1, 2)
    batch.remove(first)
    step(batch)
    assert large.made == small.made == 1
    assert 0 < batch.kv_cache_usage < 1


def test_one_that_is_larger_than_the_cache_runs_alone():
    small = ServiceModel(
        prefill_tokens_per_s=1e4, step_s=0.01, kv_cache_tokens=100, max_num_batched_tokens=2048
    )
    large, follows = prompt(150, max_tokens=2), prompt(1)
    batch = schedule(large, follows, model=small)
    now_s, _ = step(batch)
    assert batch.kv_cache_usage == 1
    run(batch, now_s)
    assert large.last_token_s < follows.first_token_s


def test_a_budget_that_gives_not_everyone_a_token_is_refused():
    with pytest.raises(ValueError, match="expected at least max_num_seqs"):
        schedule(seqs=64, budget=63)


ARRIVALS = st.lists(
    st.tuples(
        st.floats(0, 2),
        st.integers(1, 5000),
        st.integers(1, 30),
        st.booleans(),  # whether its caller goes away
    ),
    min_size=1,
    max_size=30,
)


@given(ARRIVALS, st.integers(1, 20), st.integers(20, 3000))
def test_whatever_comes_and_goes(arrivals, seqs, budget):
    arrivals = sorted(arrivals)
    sequences = [prompt(p, m, arrived_s=at_s) for at_s, p, m, _ in arrivals]
    leaving = {s for s, arrival in zip(sequences, arrivals, strict=True) if arrival[3]}
    batch, to_come, now_s = schedule(seqs=seqs, budget=budget), list(sequences), 0.0
    firsts, made = [], Counter()
    while to_come or batch.running or batch.waiting:
        while to_come and to_come[0].arrived_s <= now_s:
            batch.add(to_come.pop(0))
        before = sum(s.prefilled for s in sequences)
        took_s = batch.begin(now_s)
        assert batch.running <= seqs
        if took_s is None:
            now_s = to_come[0].arrived_s
            continue
        now_s += took_s
        found = batch.end(now_s)
        prefilled = sum(s.prefilled for s in sequences) - before
        assert prefilled + len(found.continued) <= budget
        assert took_s >= prefilled / RATE
        firsts += found.started
        made.update((*found.started, *found.continued))
        for sequence in leaving & set(found.started):
            batch.remove(sequence)
    assert firsts == sorted(sequences, key=sequences.index)  # first come, first served
    for sequence in sequences:
        assert made[sequence] == (1 if sequence in leaving else sequence.max_tokens)
        assert sequence.arrived_s <= sequence.scheduled_s < sequence.first_token_s
    assert batch.kv_cache_usage == 0

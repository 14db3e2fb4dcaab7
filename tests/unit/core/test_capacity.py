"""Prefill, decode and one relative power, from the numbers of a card."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.capacity import (
    DEFAULT_MIX,
    GpuFacts,
    Mix,
    engine_capacity,
    find_gpu,
    parallel_efficiency,
    reference_capacity,
    relative_power,
)
from engines.gpu import load_gpu_table

GPUS = load_gpu_table()
REFERENCE = reference_capacity(GPUS)


def facts(name, **more):
    return GpuFacts(spec=GPUS.named(name), **more)


def power(name, mix=DEFAULT_MIX, **more):
    return relative_power(engine_capacity(facts(name, **more)), mix, REFERENCE)


def test_the_reference_card_by_the_documented_formulas():
    assert REFERENCE.prefill_tokens_per_s == pytest.approx(312e12 * 0.5 / 16e9)
    assert REFERENCE.decode_tokens_per_s == pytest.approx(2039e9 * 0.7 / 16e9 * 32)
    assert power("A100-SXM-80GB") == 100


@pytest.mark.parametrize("mix", [Mix(1000, 1), Mix(4, 1), Mix(1, 1000)])
def test_the_reference_is_100_for_every_mix(mix):
    assert power("A100-SXM-80GB", mix) == 100


def test_prefill_follows_compute_and_decode_bandwidth():
    prompts, answers = Mix(1e6, 1e-3), Mix(1e-3, 1e6)
    assert power("H100-SXM", prompts) == pytest.approx(100 * 989 / 312, abs=0.1)
    assert power("H100-SXM", answers) == pytest.approx(100 * 3350 / 2039, abs=0.1)


def test_a_cap_from_350_to_200_w_as_it_was_measured():
    free = engine_capacity(facts("H100-PCIE"))
    capped = engine_capacity(facts("H100-PCIE", power_limit_w=200))
    assert capped.prefill_tokens_per_s / free.prefill_tokens_per_s == pytest.approx(0.60, abs=0.01)
    assert capped.decode_tokens_per_s / free.decode_tokens_per_s == pytest.approx(0.94, abs=0.01)


@pytest.mark.parametrize(
    ("limits", "factor"),
    [
        pytest.param({}, 1.0, id="no cap known"),
        pytest.param({"power_limit_w": 350}, 1.0, id="the default"),
        pytest.param({"power_limit_w": 600}, 1.0, id="above the default gains nothing"),
        pytest.param(
            {"power_limit_w": 250, "power_default_w": 250}, 1.0, id="the device's own default wins"
        ),
    ],
)
def test_what_is_no_cap(limits, factor):
    assert engine_capacity(facts("H100-PCIE", **limits)).prefill_cap_factor == factor


@pytest.mark.parametrize(("count", "left"), [(1, 1.0), (2, 0.92), (4, 0.8464), (8, 0.778688)])
def test_parallel_efficiency(count, left):
    assert parallel_efficiency(count) == pytest.approx(left)
    capacity = engine_capacity(facts("A100-SXM-80GB", count=count))
    expected = count * left * REFERENCE.decode_tokens_per_s
    assert capacity.decode_tokens_per_s == pytest.approx(expected)


@pytest.mark.parametrize(
    ("raw", "name", "compute", "memory"),
    [
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "A100-SXM-80GB", 3 / 7, 0.5),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "A100-SXM-80GB", 1 / 7, 1 / 8),
        ("NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb", "A100-SXM-80GB", 1 / 7, 0.5),
        ("NVIDIA H100 80GB HBM3 MIG 7g.80gb", "H100-SXM", 1.0, 1.0),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB", 1.0, 1.0),
        ("Voodoo 2 MIG 3g.40gb", None, 1.0, 1.0),
    ],
)
def test_a_mig_slice_is_a_share_of_its_card(raw, name, compute, memory):
    spec, compute_share, memory_share = find_gpu(GPUS, raw)
    assert (spec.name if spec else None) == name
    assert (compute_share, memory_share) == pytest.approx((compute, memory))


SPECS = st.sampled_from([spec.name for spec in GPUS.specs])
MIXES = st.builds(Mix, st.floats(0.01, 1e5), st.floats(0.01, 1e5))


@given(SPECS, MIXES, st.integers(1, 16), st.floats(1, 2000))
def test_more_gpus_and_more_watts_never_mean_less(name, mix, count, limit_w):
    assert power(name, mix, count=count) <= power(name, mix, count=count + 1)
    capped = power(name, mix, power_limit_w=limit_w)
    assert 0 < capped <= power(name, mix, power_limit_w=limit_w * 1.5)

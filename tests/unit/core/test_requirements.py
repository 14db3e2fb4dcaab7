"""The policy's demands on GPUs: who is excluded, who is only reported."""

import pytest

from control_plane.errors import InputError
from control_plane.fleet import EngineState
from control_plane.plan_view import engine_shares
from control_plane.policy import parse_policy
from tests.support.builders import make_plan
from tests.support.consul_json import consul_entry


def plan(requires, **meta):
    return make_plan(
        consul_entry("n1.e1", socket="/run/e1.sock", **meta),
        consul_entry("n1.e2", socket="/run/e2.sock", gpu_model="NVIDIA H100 80GB HBM3"),
        policy=f"models: {{acme/fox: {{requires: {requires}}}}}",
    )


def outcome(requires, **meta):
    """Return the first engine's state and the problems that name it."""
    planned = plan(requires, **meta)
    problems = [problem for problem in planned.problems if problem.path.startswith("n1.e1")]
    return planned.engines[0].state, problems


@pytest.mark.parametrize(
    ("gpu", "admitted"),
    [
        ("NVIDIA H100 80GB HBM3", True),
        ("Tesla P40", False),
        ("NVIDIA H100 PCIe", False),
        ("Voodoo 2", False),
    ],
)
def test_a_list_of_gpus_is_a_promise(gpu, admitted):
    state, problems = outcome("{gpu_models: [h100-sxm]}", gpu_model=gpu)
    assert (state is EngineState.READY) is admitted
    assert (not problems) is admitted


def test_a_card_that_the_table_does_not_know_may_be_named_as_its_driver_does():
    assert outcome("{gpu_models: [Voodoo 2]}", gpu_model="Voodoo 2")[0] is EngineState.READY


def test_an_unknown_gpu_is_in_no_list():
    state, (problem,) = outcome("{gpu_models: [H100-SXM]}")
    assert state is EngineState.EXCLUDED
    assert (problem.value, "H100-SXM" in problem.expected) == ("unknown", True)


@pytest.mark.case("F4")
@pytest.mark.parametrize(
    ("meta", "state", "reported"),
    [
        ({"gpu_model": "Tesla P40"}, EngineState.EXCLUDED, True),
        ({"gpu_compute_capability": "7.5"}, EngineState.EXCLUDED, True),
        ({"gpu_compute_capability": "12.0"}, EngineState.READY, False),
        ({"gpu_compute_capability": "sm_100"}, EngineState.READY, False),
        ({"gpu_compute_capability": "9.0a", "gpu_model": "Tesla P40"}, EngineState.READY, False),
        ({"gpu_compute_capability": "?"}, EngineState.READY, True),
        ({}, EngineState.READY, True),
    ],
)
def test_f4_too_old_is_excluded_and_unknown_is_not_too_old(meta, state, reported):
    found, problems = outcome('{min_compute_capability: "8.0"}', **meta)
    assert (found, bool(problems)) == (state, reported)


def test_an_excluded_engine_is_sent_nothing_and_keeps_no_share():
    planned = plan('{min_compute_capability: "8.0"}', gpu_model="Tesla P40")
    assert [engine.weight > 0 for engine in planned.engines] == [False, True]
    assert engine_shares(planned) == {"n1.e2": 1.0}
    assert planned.models[0].live


def test_a_model_without_demands_takes_every_gpu():
    planned = make_plan(
        consul_entry("n1.e1", gpu_model="Tesla P40"),
        policy='models: {other: {requires: {min_compute_capability: "8.0"}}}',
    )
    assert planned.engines[0].state is EngineState.READY


@pytest.mark.parametrize(
    ("requires", "path"),
    [
        ("{min_compute_capability: 8.0}", "min_compute_capability"),
        ('{min_compute_capability: "new"}', "min_compute_capability"),
        ("{gpu_models: []}", "gpu_models"),
        ("{gpu: [H100]}", "gpu"),
    ],
)
def test_demands_that_cannot_be_read(requires, path):
    with pytest.raises(InputError) as error:
        parse_policy(f"defaults: {{requires: {requires}}}".encode(), source="policy.yaml")
    assert [problem.path for problem in error.value.problems] == [f"defaults.requires.{path}"]

"""The explanation shows the plan's own values; the diff shows what a change would move."""

import pytest

from control_plane.explain import explain
from control_plane.plan_diff import Change, diff_plans, pushes
from control_plane.planner import plan_fleet
from control_plane.policy import parse_policy
from control_plane.resources import View
from tests.support.builders import make_fleet, make_plan
from tests.support.consul_json import consul_entry

EDGE = View(role="edge", listen_address="127.0.0.1", listen_port=10000)


def table_engine(service_id, gpu, *, port=9901, **meta):
    entry = consul_entry(service_id, port=port, gpu_model=gpu, **meta)
    if "gpu_power" not in meta:
        del entry["Service"]["Meta"]["gpu_power"]
    return entry


def steps(*entries, subject="acme/fox", policy="{}", corrections=None):
    fleet, parsed = make_fleet(*entries), parse_policy(policy.encode(), source="p")
    plan = plan_fleet(fleet, parsed, 0.0, corrections or {})
    return [
        {step.what: step for step in item.steps} for item in explain(fleet, parsed, plan, subject)
    ]


def test_a_card_of_the_table_step_by_step():
    (found,) = steps(table_engine("n.e", "NVIDIA H100 PCIe", gpu_power_limit_w="200"))
    assert found["GPU"].value == "1 x H100-PCIE"
    assert found["power cap"].value == "200 of 350 W"
    assert "prefill x 0.601" in found["power cap"].how
    assert found["prefill"].value.endswith("tokens/s")
    assert "4 prompt and 1 output" in found["gpu_power"].how
    assert found["share"].value == "100.0%"
    assert found["capacity"].value == found["gpu_power"].value == "116.2"
    assert found["weight"].value == "18232"  # a tenth of 116.2 to the fourth, rounded


def test_a_mig_slice_and_several_cards():
    (slice_,) = steps(table_engine("n.e", "NVIDIA A100-SXM4-80GB MIG 3g.40gb"))
    assert slice_["MIG slice"].value == "0.429 of compute, 0.500 of memory"
    (pair,) = steps(table_engine("n.e", "NVIDIA L4", gpu_count="2"))
    assert pair["parallel efficiency"].value == "0.920"


def test_unknown_is_said_to_be_unknown():
    (found,) = steps(table_engine("n.e", "Voodoo 2"))
    assert found["GPU"].value == "Voodoo 2"
    assert "unknown" in found["GPU"].how
    assert "documented default" in found["gpu_power"].how
    assert "prefill" not in found
    assert "unknown" in found["max_connections"].how


def test_declared_power_is_compared_with_the_table():
    (found,) = steps(table_engine("n.e", "NVIDIA L4", gpu_power="400"))
    assert found["gpu_power"].value == "400"
    assert found["the table says"].value == "22.1"


def test_a_correction_is_told_apart():
    entry = consul_entry("n.e")
    declared = make_fleet(entry).nodes[0].engines[0].declaration
    (found,) = steps(entry, corrections={("n.e", declared): 0.8})
    assert (found["gpu_power"].value, found["capacity"].value) == ("100", "80")
    assert "corrected by measurement" in found["capacity"].how


def test_an_engine_that_gets_nothing_says_why():
    (found,) = steps(consul_entry("n.e", status="critical"))
    assert found["weight"].value == "none"
    assert "down" in found["weight"].how


@pytest.mark.parametrize(
    ("subject", "engines"), [("acme/fox", 2), ("n1.e", 1), ("nope", 0), ("acme", 0)]
)
def test_a_subject_is_a_model_or_an_engine(subject, engines):
    entries = consul_entry("n1.e", port=1), consul_entry("n2.e", port=2)
    assert len(steps(*entries, subject=subject)) == engines


def entries(**meta):
    return consul_entry("n1.e", port=1, **meta), consul_entry("n2.e", port=2)


def test_equal_plans_differ_in_nothing():
    plan = make_plan(*entries())
    assert diff_plans(plan, plan) == ()
    assert pushes(plan, plan, EDGE) == ()


def test_a_moved_power_moves_weights_and_shares_and_only_endpoints_are_pushed():
    before, after = make_plan(*entries()), make_plan(*entries(gpu_power="300"))
    changes = {(c.name, c.field): (c.before, c.after) for c in diff_plans(before, after)}
    assert changes["n1.e", "weight"] == (10_000, 810_000)
    assert changes["n2.e", "share"] == (0.5, 0.25)
    assert ("n2.e", "weight") not in changes
    sent = [(p.envoy, p.type, p.changed, p.removed) for p in pushes(before, after, EDGE)]
    assert sent == [
        ("edge", "ClusterLoadAssignment", 1, 0),
        ("n1", "ClusterLoadAssignment", 1, 0),
    ]


def test_engines_that_come_and_go():
    before, after = make_plan(entries()[0]), make_plan(entries()[1])
    changes = {(c.name, c.field): (c.before, c.after) for c in diff_plans(before, after)}
    assert changes["n1.e", "state"] == ("ready", None)
    assert changes["n2.e", "state"] == (None, "ready")
    assert any(push.envoy == "n1" and push.removed for push in pushes(before, after, EDGE))


def test_a_changed_policy():
    before = make_plan(*entries())
    after = make_plan(*entries(), policy="{retry_after: 9s, defaults: {balance: proportional}}")
    changes = diff_plans(before, after)
    setting = Change(kind="setting", name="policy", field="retry_after_s", before=2, after=9)
    assert setting in changes
    assert any(change.field == "balance" for change in changes)
    assert {push.type for push in pushes(before, after, EDGE)} >= {"Cluster", "Listener"}

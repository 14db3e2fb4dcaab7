"""A plan made from the last one equals a plan made from nothing, and keeps what did not change."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.catalog import CatalogParser, parse_catalog
from control_plane.fleet import FleetBuilder, build_fleet
from control_plane.metrics import Metrics
from control_plane.plan_metrics import PlanGauges
from control_plane.planner import Planner, plan_fleet
from control_plane.policy import parse_policy
from tests.support.builders import GPUS
from tests.support.consul_json import consul_answer, consul_entry

POLICIES = [
    parse_policy(text, source="policy.yaml")
    for text in (
        b"{}",
        b"defaults: {balance: proportional, max_queue: 1}",
        b"models: {acme/fox: {versions: {v1: 3, v9: 1}, request_limit: {rate_per_a100: 2/s}}}",
        b'defaults: {requires: {min_compute_capability: "8.0"}}',
    )
]

engines = st.fixed_dictionaries(
    {
        "node": st.sampled_from("abcd"),
        "name": st.sampled_from(["e0", "e1", "e2"]),
        "model": st.sampled_from(["acme/fox", "acme/owl"]),
        "version": st.sampled_from(["", "v1", "v2"]),
        "gpu_power": st.sampled_from(["", "40", "100", "300", "broken"]),
        "gpu_model": st.sampled_from(["", "NVIDIA L4", "Tesla P40", "Voodoo 2"]),
        "port": st.sampled_from([9901, 9902]),
        "status": st.sampled_from(["passing", "critical"]),
        "state": st.sampled_from(["ready", "warming", "draining"]),
    }
)
worlds = st.tuples(
    st.lists(engines, max_size=8),
    st.sampled_from(POLICIES),
    st.dictionaries(st.sampled_from(["a.e0", "b.e1", "c.e2"]), st.sampled_from([0.5, 2.0])),
)


def answer(world):
    entries = []
    for value in world:
        meta = {key: value[key] for key in ("version", "gpu_power", "gpu_model") if value[key]}
        entry = consul_entry(
            f"{value['node']}.{value['name']}",
            port=value["port"],
            status=value["status"],
            model=value["model"],
            state=value["state"],
            socket=f"/run/{value['name']}.sock",
            **meta,
        )
        if not value["gpu_power"]:
            entry["Service"]["Meta"].pop("gpu_power", None)
        entries.append(entry)
    return consul_answer(*entries)


@settings(max_examples=150)
@given(st.lists(worlds, min_size=2, max_size=5))
def test_after_any_changes_the_plan_is_the_one_made_from_nothing(changes):
    parser, builder, planner = CatalogParser("consul"), FleetBuilder(GPUS), Planner()
    gauges, metrics = Metrics(), Metrics()
    shown = PlanGauges(gauges)
    for world, policy, factors in changes:
        data = answer(world)
        catalog = parser.parse(data)
        assert catalog == parse_catalog(data, source="consul")
        fleet = builder.build(catalog)
        assert fleet == build_fleet(catalog, GPUS)
        corrections = {
            (engine.id, engine.declaration): factors[engine.id]
            for node in fleet.nodes
            for engine in node.engines
            if engine.id in factors
        }
        plan = planner.plan(fleet, policy, 0.0, corrections)
        assert plan == plan_fleet(fleet, policy, 0.0, corrections)
        shown.show(plan)
    PlanGauges(metrics).show(plan)
    assert series(gauges) == series(metrics)


def series(metrics):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name.startswith(("wattmesh_engine", "wattmesh_pool"))
    }


def test_one_changed_engine_leaves_every_other_node_and_pool_as_it_was():
    entries = [
        consul_entry(
            f"n{i}.e{j}",
            port=9000 + i,
            socket=f"/run/e{j}.sock",
            model=f"acme/m{j}",
            gpu_power=str(100 + i),
        )
        for i in range(20)
        for j in range(3)
    ]
    parser, builder, planner = CatalogParser("consul"), FleetBuilder(GPUS), Planner()

    def plan():
        catalog = parser.parse(consul_answer(*entries))
        return planner.plan(builder.build(catalog), POLICIES[0], 0.0)

    before = plan()
    entries[31]["Service"]["Meta"]["gpu_power"] = "150"  # the second engine of the eleventh node
    after = plan()
    new_nodes = [n.id for n, old in zip(after.nodes, before.nodes, strict=True) if n is not old]
    new_pools = [
        p.pool.model for p, old in zip(after.pools, before.pools, strict=True) if p is not old
    ]
    assert (new_nodes, new_pools) == (["n10"], ["acme/m1"])


def test_an_engine_of_a_large_pool_moves_no_other_engines_weight():
    """Near the limit of uint32 all weights of a pool share a factor, which comes in steps."""
    entries = [
        consul_entry(f"n{i}.e0", port=9000 + i, gpu_power=str(1000 + i % 7)) for i in range(300)
    ]
    builder, planner = FleetBuilder(GPUS), Planner()

    def weights():
        catalog = parse_catalog(consul_answer(*entries), source="consul")
        return {
            e.id: e.weight for e in planner.plan(builder.build(catalog), POLICIES[0], 0.0).engines
        }

    before = weights()
    entries[5]["Service"]["Meta"]["gpu_power"] = "900"
    after = weights()
    assert [name for name in before if before[name] != after[name]] == ["n5.e0"]
    assert sum(after.values()) < 2**32


def test_the_order_of_the_answer_does_not_matter_to_what_is_known():
    entries = [consul_entry(f"n{i}.e0", port=9000 + i) for i in range(5)]
    parser = CatalogParser("consul")
    first = parser.parse(consul_answer(*entries))
    again = parser.parse(json.dumps(list(reversed(json.loads(consul_answer(*entries))))).encode())
    assert all(old is new for old, new in zip(first.entries, again.entries, strict=True))


def test_problems_name_the_place_of_this_answer():
    good = consul_entry("n1.e0")
    bad = consul_entry("n2.e0", gpu_count="none")
    parser = CatalogParser("consul")
    (first,) = parser.parse(consul_answer(good, bad)).problems
    (second,) = parser.parse(consul_answer(bad, good)).problems
    assert (first.path[:3], second.path[:3]) == ("[1]", "[0]")

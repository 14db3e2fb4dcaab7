"""Shares, breakers and splits: pure arithmetic with stated bounds."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from control_plane.identity import Pool
from control_plane.planner import plan_fleet
from control_plane.policy import Policy, parse_policy
from engines.keep_alive import ENGINE_KEEP_ALIVE_S
from tests.support import builders
from tests.support.builders import make_fleet
from tests.support.consul_json import consul_entry

FOX = Pool("acme/fox")


def make_plan(*entries, policy="", balance="proportional"):
    """Return a plan whose weights are capacities, so that a test reads shares from them."""
    return builders.make_plan(*entries, policy=f"defaults: {{balance: {balance}}}\n{policy}")


def engine(node, power=100, *, number=0, **meta):
    socket = f"/run/{number}.sock"
    return consul_entry(
        f"{node}.e{number}",
        port=1000 + int(node[1:]) % 60_000,
        gpu_power=str(power),
        socket=socket,
        **meta,
    )


def weights(plan):
    return {engine.id: engine.weight for engine in plan.engines}


@pytest.mark.parametrize(
    ("powers", "expected"),
    [
        pytest.param([], [], id="empty fleet"),
        pytest.param([100, 300], [100, 300], id="power is weight where it can be"),
        pytest.param([1, 3], [100, 300], id="small powers are scaled up together"),
        pytest.param([0.001, 0.003], [100, 300], id="so are tiny ones"),
        pytest.param([700, 35], [3500, 175], id="the weakest gets at least 100"),
        pytest.param([33.4], [167], id="a lone engine"),
    ],
)
def test_weight_follows_power(powers, expected):
    plan = make_plan(*(engine(f"n{i}", power) for i, power in enumerate(powers)))
    assert list(weights(plan).values()) == expected


@pytest.mark.case("D2")
def test_d2_huge_powers_fit_uint32():
    plan = make_plan(*(engine(f"n{i}", 2_000_000_000) for i in range(3)))
    values = list(weights(plan).values())
    assert sum(values) <= 2**32 - 1
    assert max(values) == min(values) > 1


@pytest.mark.case("D2")
def test_d2_150_equal_engines_all_get_something():
    plan = make_plan(*(engine(f"n{i}", 0.0001) for i in range(150)))
    assert set(weights(plan).values()) == {100}


@pytest.mark.case("D2")
@pytest.mark.parametrize("value", ["-5", "nan", "350 W", "0"])
def test_d2_an_unusable_power_is_the_default_and_named(value):
    plan = make_plan(engine("n1", value), engine("n2"))
    assert weights(plan) == {"n1.e0": 100, "n2.e0": 100}
    assert any("n1.e0" in problem.path for problem in plan.problems)


POWERS = st.lists(st.floats(min_value=1e-3, max_value=1e12), min_size=1, max_size=12)


@given(POWERS)
def test_live_weights_are_whole_at_least_1_and_fit(powers):
    plan = make_plan(*(engine(f"n{i:02}", repr(power)) for i, power in enumerate(powers)))
    values = list(weights(plan).values())
    assert all(isinstance(value, int) and value >= 1 for value in values)
    assert sum(values) <= 2**32 - 1
    if max(powers) / min(powers) < 1e6:
        for one, power in zip(values, powers, strict=True):
            ratio = (one / max(values)) / (power / max(powers))
            assert ratio == pytest.approx(1, abs=0.01)


@given(st.permutations([engine(f"n{i}", 10 * (i + 1)) for i in range(6)]))
def test_order_does_not_matter(entries):
    assert make_plan(*entries) == make_plan(*sorted(entries, key=lambda e: e["Service"]["ID"]))


@given(
    st.lists(st.integers(1, 10_000), min_size=2, max_size=6), st.sampled_from([0.01, 7.0, 1000.0])
)
def test_shares_do_not_depend_on_the_scale_of_power(powers, factor):
    def shares(scale):
        plan = make_plan(*(engine(f"n{i}", repr(p * scale)) for i, p in enumerate(powers)))
        total = sum(weights(plan).values())
        return [weight / total for weight in weights(plan).values()]

    assert shares(1.0) == pytest.approx(shares(factor), rel=0.02)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_more_power_never_means_less_weight(one, other):
    assume(one <= other)
    low, high = weights(make_plan(engine("n1", one), engine("n2", other))).values()
    assert low <= high


@pytest.mark.parametrize(
    ("powers", "expected"),
    [
        pytest.param([100, 300], [10_000, 810_000], id="fourth powers"),
        pytest.param([1, 3], [625, 50_625], id="small powers are scaled up together"),
        pytest.param([70, 7], [1_500_625, 150], id="the ratio to the fourth"),
    ],
)
def test_latency_weights_are_fourth_powers_of_capacity(powers, expected):
    entries = [engine(f"n{i}", power) for i, power in enumerate(powers)]
    assert list(weights(make_plan(*entries, balance="latency")).values()) == expected


def test_latency_counts_a_node_as_one_engine_of_its_summed_capacity():
    plan = make_plan(
        engine("n1", 100, number=0),
        engine("n1", 100, number=1),
        engine("n2", 200),
        balance="latency",
    )
    assert [e.weight for e in plan.pools[0].endpoints] == [160_000, 160_000]


def test_a_large_pool_keeps_its_ratios():
    """2,000 hosts of eight engines, two kinds of card: no weight sinks to where rounding tells."""
    entries = [engine(f"n{i}", (100, 230)[i % 2], number=k) for i in range(2000) for k in range(8)]
    plan = make_plan(*entries, balance="latency")
    strong, weak = max(weights(plan).values()), min(weights(plan).values())
    assert weak >= 100
    assert strong / weak == pytest.approx(2.3**4, rel=0.01)
    assert sum(endpoint.weight for endpoint in plan.pools[0].endpoints) <= 2**32 - 1


@given(POWERS)
def test_latency_weights_fit_uint32_on_every_node_and_edge(powers):
    entries = [engine(f"n{i % 4}", repr(power), number=i) for i, power in enumerate(powers)]
    plan = make_plan(*entries, balance="latency")
    assert min(weights(plan).values()) >= 1
    assert sum(weights(plan).values()) <= 2**32 - 1
    assert 0 < sum(e.weight for e in plan.pools[0].endpoints) <= 2**32 - 1


def table_engine(node, gpu, **meta):
    entry = engine(node, gpu_model=gpu, **meta)
    del entry["Service"]["Meta"]["gpu_power"]
    return entry


def mixed(prompt, output):
    mix = f"{{prompt: {prompt}, output: {output}}}"
    return f"models: {{acme/fox: {{prompt_output_mix: {mix}}}}}"


def test_a_models_mix_decides_which_card_is_strong():
    """An L40S has more compute than its bandwidth is worth; an A30 the other way round."""
    entries = [table_engine("n1", "NVIDIA L40S"), table_engine("n2", "NVIDIA A30")]
    mixes = {}
    for mix in ((64, 1), (1, 4)):
        plan = make_plan(*entries, policy=mixed(*mix))
        mixes[mix] = [e.gpu_power for e in plan.engines]
    assert mixes[64, 1][0] > 1.8 * mixes[64, 1][1]
    assert mixes[1, 4][0] < 1.1 * mixes[1, 4][1]


def test_a_power_cap_moves_prefill_heavy_weights_and_hardly_decode_heavy_ones():
    left = {}
    for mix in ((64, 1), (1, 16)):
        free, capped = (
            make_plan(
                table_engine("n1", "NVIDIA H100 PCIe", gpu_power_limit_w=limit),
                policy=mixed(*mix),
            )
            .engines[0]
            .gpu_power
            for limit in ("350", "200")
        )
        left[mix] = capped / free
    assert left[64, 1] == pytest.approx(0.66, abs=0.06)
    assert left[1, 16] == pytest.approx(0.93, abs=0.03)


def test_declared_power_ignores_card_cap_and_mix():
    entry = engine("n1", 77, gpu_model="NVIDIA L4", gpu_power_limit_w="40")
    plan = make_plan(entry, policy=mixed(9, 1))
    assert plan.engines[0].gpu_power == 77


@pytest.mark.parametrize(
    "changed",
    [
        {"gpu_power_limit_w": "200"},
        {"gpu_power_default_w": "400"},
        {"version": "v2"},
        {"gpu_model": "NVIDIA L4"},
    ],
)
def test_what_was_measured_of_another_declaration_does_not_count(changed):
    before = make_fleet(engine("n1", 400)).nodes[0].engines[0].declaration
    fleet = make_fleet(engine("n1", 400, **changed))
    plan = plan_fleet(fleet, Policy(), 0.0, {("n1.e0", before): 0.25})
    assert plan.engines[0].capacity == 400


def test_a_correction_scales_the_capacity_and_leaves_the_declared_power():
    fleet = make_fleet(engine("n1", 400), engine("n2", 100))
    policy = parse_policy(b"defaults: {balance: proportional}", source="p")
    declared = fleet.nodes[0].engines[0].declaration
    plan = plan_fleet(fleet, policy, 0.0, {("n1.e0", declared): 0.25})
    assert [(e.gpu_power, e.capacity) for e in plan.engines] == [(400, 100), (100, 100)]
    assert weights(plan) == {"n1.e0": 100, "n2.e0": 100}


def test_an_edge_sees_nodes_with_the_sum_of_their_live_engines():
    plan = make_plan(
        engine("n1", 100, number=0),
        engine("n1", 50, number=1),
        engine("n1", 70, number=2, status="critical"),
        engine("n2", 300),
    )
    (pool,) = plan.pools
    assert [(e.node, e.weight) for e in pool.endpoints] == [("n1", 300), ("n2", 600)]


@pytest.mark.parametrize(
    "meta",
    [{"status": "critical"}, {"state": "warming"}, {"state": "draining"}],
    ids=["down", "warming", "draining"],
)
def test_only_ready_engines_get_new_requests(meta):
    plan = make_plan(engine("n1", **meta), engine("n2"))
    assert weights(plan) == {"n1.e0": 0, "n2.e0": 100}
    assert [e.node for e in plan.pools[0].endpoints] == ["n2"]
    assert [node.id for node in plan.nodes] == ["n1", "n2"]


@pytest.mark.conformance("54")
@pytest.mark.conformance("consul-17")
def test_54_a_pool_without_live_engines_is_empty_not_gone():
    plan = make_plan(engine("n1", status="critical"))
    assert [(pool.pool, pool.endpoints) for pool in plan.pools] == [(FOX, ())]
    assert [(model.model, model.live) for model in plan.models] == [("acme/fox", False)]


def test_a_model_of_the_policy_without_engines_is_known_and_empty():
    plan = make_plan(policy="models: {acme/owl: {}}")
    assert [(model.model, model.live) for model in plan.models] == [("acme/owl", False)]
    assert [pool.pool for pool in plan.pools] == [Pool("acme/owl")]


def test_versions_share_by_capacity_unless_the_policy_says():
    entries = [engine("n1", 100, version="v1"), engine("n2", 300, version="v2")]
    assert make_plan(*entries).models[0].routes == (
        (Pool("acme/fox", "v1"), 100),
        (Pool("acme/fox", "v2"), 300),
    )
    stated = make_plan(*entries, policy="models: {acme/fox: {versions: {v1: 9, v2: 1}}}")
    assert [weight for _, weight in stated.models[0].routes] == [9, 1]


def test_a_lone_versions_route_does_not_move_with_power():
    routes = {make_plan(engine("n1", power)).models[0].routes for power in (1, 100, 300)}
    assert routes == {((FOX, 1),)}


@pytest.mark.conformance("73")
def test_73_all_versions_dead_still_sum_to_at_least_1():
    plan = make_plan(
        engine("n1", version="v1", status="critical"), engine("n2", version="v2", status="critical")
    )
    assert sum(weight for _, weight in plan.models[0].routes) == 2


def test_a_version_that_the_split_does_not_name_gets_nothing_and_is_told():
    plan = make_plan(
        engine("n1", version="v1"),
        engine("n2", version="v2"),
        policy="models: {acme/fox: {versions: {v1: 1, v3: 1}}}",
    )
    assert [pool.version for pool, _ in plan.models[0].routes] == ["v1", "v3"]
    assert [problem.path for problem in plan.problems] == ["models.acme/fox.versions.v2"]
    assert {pool.pool.version: len(pool.endpoints) for pool in plan.pools} == {
        "v1": 1,
        "v2": 1,
        "v3": 0,
    }


@pytest.mark.conformance("63")
def test_63_breakers_move_with_neither_health_nor_power():
    before = make_plan(engine("n1", 100), engine("n2", 300))
    after = make_plan(engine("n1", 70), engine("n2", 300, status="critical"))
    assert before.pools[0].edge_thresholds == after.pools[0].edge_thresholds


def test_the_edges_breakers_grow_with_the_fleet():
    entries = [engine(f"n{i}", max_num_seqs="256") for i in range(64)]
    assert make_plan(*entries).pools[0].edge_thresholds.default.max_requests >= 64 * 288 * 5


def test_an_unknown_keep_alive_is_vllms_default():
    assert make_plan(engine("n1")).engines[0].keep_alive_s == ENGINE_KEEP_ALIVE_S
    assert make_plan(engine("n1", keep_alive_s="30")).engines[0].keep_alive_s == 30


def test_the_time_does_not_matter_yet():
    fleet, policy = make_fleet(engine("n1")), parse_policy(b"", source="p")
    assert plan_fleet(fleet, policy, 0.0) == plan_fleet(fleet, policy, 1e9)
    assert policy == Policy()

"""Whatever engines and a policy may declare, a plan is made and its resources pass our checks."""

import math

from hypothesis import given
from hypothesis import strategies as st

from control_plane.metadata import MAX_NUM_SEQS, NUMBER_BOUNDS
from control_plane.planner import plan_fleet
from control_plane.policy import parse_policy
from control_plane.posterior import LARGEST_FACTOR, LEAST_FACTOR
from control_plane.rendering import Renderer
from control_plane.resources import View
from control_plane.weights import MAX_WEIGHT_SUM
from tests.support.builders import make_fleet
from tests.support.consul_json import consul_entry

CARDS = ("NVIDIA L4", "NVIDIA H200", "NVIDIA A100-SXM4-80GB MIG 1g.10gb")


def within(least, largest):
    """Numbers of a range, its ends among them, as Consul holds them."""
    numbers = st.floats(least, largest) | st.sampled_from([least, largest])
    return numbers.map(lambda number: f"{number:.17g}")


def up_to(largest):
    return (st.integers(1, largest) | st.sampled_from([1, largest])).map(str)


METADATA = st.fixed_dictionaries(
    {},
    optional={
        **{key: within(*bounds) for key, bounds in NUMBER_BOUNDS.items()},
        "gpu_model": st.sampled_from(CARDS),
        "gpu_count": up_to(2**31 - 1),
        "max_num_seqs": up_to(MAX_NUM_SEQS),
    },
)
FACTORS = st.floats(LEAST_FACTOR, LARGEST_FACTOR) | st.sampled_from([LEAST_FACTOR, LARGEST_FACTOR])
TOKENS = st.sampled_from([0.001, 1.0, 1e9])


def entry(number, meta):
    """An engine; two share a node."""
    found = consul_entry(f"n{number // 2}.e{number}", port=9000 + number // 2, **meta)
    if "gpu_power" not in meta:
        del found["Service"]["Meta"]["gpu_power"]
    return found


@given(
    st.lists(st.tuples(METADATA, FACTORS), min_size=1, max_size=6),
    st.sampled_from(["latency", "proportional"]),
    st.sampled_from([0, 4, 1000]),
    TOKENS,
    TOKENS,
)
def test_the_whole_allowed_range_can_be_planned(engines, balance, max_queue, prompt, output):
    fleet = make_fleet(*(entry(number, meta) for number, (meta, _) in enumerate(engines)))
    policy = parse_policy(
        f"defaults: {{balance: {balance}, max_queue: {max_queue}, "
        f"prompt_output_mix: {{prompt: {prompt!r}, output: {output!r}}}}}".encode(),
        source="test",
    )
    declared = sorted(
        (engine.id, engine.declaration) for node in fleet.nodes for engine in node.engines
    )
    corrections = dict(zip(declared, (factor for _, factor in engines), strict=True))
    plan = plan_fleet(fleet, policy, 0.0, corrections)
    assert len(plan.engines) == len(engines)
    assert all(engine.weight >= 1 and math.isfinite(engine.capacity) for engine in plan.engines)
    for pool in plan.pools:
        assert sum(endpoint.weight for endpoint in pool.endpoints) <= MAX_WEIGHT_SUM
    renderer = Renderer()
    edge = View(role="edge", listen_address="127.0.0.1", listen_port=10000)
    for view in (edge, *(View(role="node", node_id=node.id) for node in plan.nodes)):
        assert renderer.render(plan, view)

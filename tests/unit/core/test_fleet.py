"""From entries to nodes and engines: states, powers and contradictions."""

import pytest

from control_plane.fleet import DEFAULT_GPU_POWER, EngineState, PowerSource
from tests.support.builders import make_fleet
from tests.support.consul_json import consul_entry


def engine(**meta):
    entry = consul_entry("n.e", **meta)
    if "gpu_power" not in meta:
        del entry["Service"]["Meta"]["gpu_power"]
    return make_fleet(entry)


@pytest.mark.parametrize(
    ("meta", "power", "source"),
    [
        pytest.param({"gpu_power": "42"}, 42, PowerSource.METADATA, id="declared"),
        pytest.param(
            {"gpu_power": "42", "gpu_model": "NVIDIA L4"},
            42,
            PowerSource.METADATA,
            id="declared wins over the table",
        ),
        pytest.param({"gpu_model": "NVIDIA A100-SXM4-80GB"}, 100, PowerSource.TABLE, id="table"),
        pytest.param(
            {"gpu_model": "NVIDIA A100-SXM4-80GB", "gpu_count": "8"},
            623.0,
            PowerSource.TABLE,
            id="eight cards, at 0.92 for each doubling",
        ),
        pytest.param(
            {"gpu_model": "Voodoo 2"}, DEFAULT_GPU_POWER, PowerSource.DEFAULT, id="unknown card"
        ),
        pytest.param({}, DEFAULT_GPU_POWER, PowerSource.DEFAULT, id="nothing known"),
    ],
)
def test_power_and_where_it_comes_from(meta, power, source):
    fleet = engine(**meta)
    ((built,),) = (node.engines for node in fleet.nodes)
    assert (built.gpu_power, built.power_source) == (power, source)
    assert bool(fleet.problems) == (source is PowerSource.DEFAULT)


@pytest.mark.parametrize(
    ("status", "state", "expected"),
    [
        ("passing", "ready", EngineState.READY),
        ("passing", "warming", EngineState.WARMING),
        ("passing", "draining", EngineState.DRAINING),
        ("critical", "ready", EngineState.DOWN),
        ("critical", "draining", EngineState.DOWN),
    ],
)
def test_state(status, state, expected):
    fleet = make_fleet(consul_entry("n.e", status=status, state=state))
    assert fleet.nodes[0].engines[0].state is expected


def test_two_engines_on_one_socket():
    fleet = make_fleet(consul_entry("n.e1", socket="/s"), consul_entry("n.e2", socket="/s"))
    assert [e.id for e in fleet.nodes[0].engines] == ["n.e1"]
    (problem,) = fleet.problems
    assert "n.e2" in problem.path
    assert "n.e1" in problem.expected


def test_the_same_socket_path_on_two_hosts_is_fine():
    fleet = make_fleet(consul_entry("n1.e", port=1), consul_entry("n2.e", port=2))
    assert [node.id for node in fleet.nodes] == ["n1", "n2"]
    assert not fleet.problems


def test_two_nodes_behind_one_listener():
    """Envoy keeps one of two equal addresses, and half of the traffic would find no pool."""
    fleet = make_fleet(consul_entry("n1.e"), consul_entry("n2.e"))
    assert [node.id for node in fleet.nodes] == ["n1"]
    (problem,) = fleet.problems
    assert problem.path == "n2.e.address"
    assert "'n1'" in problem.expected


def test_a_node_has_one_listener_the_one_that_most_engines_name():
    fleet = make_fleet(
        consul_entry("n.e1", port=1), consul_entry("n.e2", port=2), consul_entry("n.e3", port=2)
    )
    assert fleet.nodes[0].port == 2
    assert [e.name for e in fleet.nodes[0].engines] == ["e2", "e3"]
    assert "n.e1.address" in fleet.problems[0].path

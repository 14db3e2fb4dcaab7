"""A stopped agent leaves nothing behind: no process, no socket, no registration."""

import pytest

from tests.support.mesh import EngineSetup, Mesh
from tests.support.processes import children, command_line

pytestmark = [pytest.mark.envoy, pytest.mark.consul]


def test_stopped_agent_leaves_nothing_behind() -> None:
    engine = EngineSetup(node="node-a", name="e1", gpu_power=100)
    with Mesh([engine]) as mesh:
        agent = mesh.agents["node-a"]
        family = {pid: command_line(pid) for pid in children(agent.pid)}
        assert len(family) >= 2  # the engine and the node Envoy
        assert agent.stop(timeout_s=40) == 0
        assert {pid: line for pid, line in family.items() if command_line(pid) == line} == {}
        assert mesh.consul.engines() == {}
        assert list((mesh.root / "node-a").glob("**/*.sock")) == []

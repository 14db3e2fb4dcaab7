"""Which processes a killed mesh left, told by their command lines."""

from pathlib import Path

import pytest

from control_plane.cli.leftovers import is_leftover

RUN = Path("/run/user/7/wattmesh-7")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param(["envoy", "-c", f"{RUN}/edge.envoy.yaml"], True, id="an Envoy"),
        pytest.param(["python", "--uds", f"{RUN}/node-a/fox-0.sock"], True, id="an engine"),
        pytest.param(["consul", "-pid-file", f"{RUN}/consul.pid"], True, id="our Consul"),
        pytest.param(["tail", "-f", f"{RUN}/logs/edge.envoy.log"], False, id="a reader of logs"),
        pytest.param(["envoy", "-c", f"{RUN}-2/edge.envoy.yaml"], False, id="another directory's"),
        pytest.param(["wattmesh", "status", f"unix:{RUN}/admin.sock"], False, id="a client"),
        pytest.param(["curl", "--unix-socket", f"{RUN}/admin.sock"], False, id="curl"),
        pytest.param([], False, id="a kernel thread"),
    ],
)
def test_is_leftover(argv: list[str], expected: bool) -> None:
    assert is_leftover(argv, RUN) is expected

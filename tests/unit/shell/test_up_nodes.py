"""The nodes of `up`, and the Envoy that is found for them."""

from pathlib import Path

import pytest

from control_plane.cli.envoys import find_envoy
from control_plane.cli.up_nodes import load_nodes, with_tiny_model
from control_plane.errors import InputError, WattmeshError

NODE = "node: {id}\naddress: 10.0.0.1\nmesh_port: 10443\nengines: [{{name: {engine}, model: m}}]\n"


def node_file(directory: Path, name: str, node_id: str = "n", engine: str = "e1") -> Path:
    path = directory / name
    path.write_text(NODE.format(id=node_id, engine=engine))
    return path


def test_the_examples_fit_side_by_side_on_this_machine(tmp_path: Path) -> None:
    nodes = load_nodes((), Path("/tmp/run"), lean=False)
    assert [node.node for node in nodes] == ["node-a", "node-b"]
    assert {node.address for node in nodes} == {"127.0.0.1"}
    assert len({node.mesh_port for node in nodes}) == 2
    sockets = [node.socket(engine) for node in nodes for engine in node.engines]
    assert len(set(sockets)) == len(sockets) == 3
    assert all(path.startswith("/tmp/run/node-") for path in sockets)
    assert [len(n.engines) for n in load_nodes((), tmp_path, lean=True)] == [1, 1]


@pytest.mark.case("A1")
def test_a1_a_run_directory_that_is_too_long_is_refused_for_every_engine(tmp_path: Path) -> None:
    files = [node_file(tmp_path, "a.yaml", "a"), node_file(tmp_path, "b.yaml", "b")]
    with pytest.raises(InputError) as caught:
        load_nodes(files, Path("/tmp") / ("x" * 100), lean=False)
    assert len(caught.value.problems) == 2
    assert "at most 107 bytes" in str(caught.value)
    assert "--run-dir" in str(caught.value)


def test_problems_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    files = [
        node_file(tmp_path, "a.yaml", engine="E_1"),
        tmp_path / "none.yaml",
        node_file(tmp_path, "b.yaml", "n"),
        node_file(tmp_path, "c.yaml", "n"),
    ]
    with pytest.raises(InputError) as caught:
        load_nodes(files, tmp_path, lean=False)
    text = str(caught.value)
    assert all(part in text for part in ("'E_1'", "none.yaml", "no other node file has"))


@pytest.mark.parametrize(
    "name", ["edge", "lock", "logs", "tiny-model", "admin.sock", "edge.envoy.yaml", "consul.pid"]
)
def test_a_name_that_the_mesh_needs_itself_is_refused(tmp_path: Path, name: str) -> None:
    path = node_file(tmp_path, "a.yaml", name)
    with pytest.raises(InputError) as caught:
        load_nodes([path], tmp_path, lean=False)
    (problem,) = caught.value.problems
    assert (problem.source, problem.path, problem.value) == (str(path), "node", repr(name))


def test_a_mesh_without_any_engine_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "none.yaml"
    empty.write_text("node: n\naddress: 10.0.0.1\nmesh_port: 10443\nengines: []\n")
    with pytest.raises(InputError) as caught:
        load_nodes([empty], tmp_path, lean=False)
    assert f"{empty}: engines is []" in str(caught.value)
    assert load_nodes([empty, node_file(tmp_path, "a.yaml", "a")], tmp_path, lean=False)


async def test_a_python_without_vllm_is_named(tmp_path: Path) -> None:
    with pytest.raises(WattmeshError, match=r"cannot import vllm.*WATTMESH_VLLM_PYTHON"):
        await with_tiny_model((), str(tmp_path / "python"), tmp_path)


def test_a_named_envoy_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTMESH_ENVOY", "/opt/envoy")
    assert find_envoy() == "/opt/envoy"

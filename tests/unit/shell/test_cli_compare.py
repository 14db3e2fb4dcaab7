"""`wattmesh explain` and `wattmesh diff` as a user runs them."""

import json
from pathlib import Path

import pytest

from control_plane.cli import main
from control_plane.cli.app import run_app

GOLDEN = Path(__file__).parents[2] / "golden"
CATALOG = str(GOLDEN / "mixed-fleet" / "catalog.json")
POLICY = str(GOLDEN / "mixed-fleet" / "policy.yaml")


def test_explain_as_a_table(capsys):
    argv = ["explain", "acme/Fox2.5-7B", "--catalog", CATALOG, "--policy", POLICY]
    assert run_app(argv) == 0
    out = capsys.readouterr().out
    assert "rack1-a.fox-0 (acme/Fox2.5-7B)" in out
    assert "tokens/s" in out


def test_explain_one_engine_as_json(capsys):
    argv = ["explain", "rack1-b.fox-0", "--catalog", CATALOG, "--policy", POLICY, "-o", "json"]
    assert run_app(argv) == 0
    (item,) = json.loads(capsys.readouterr().out)
    assert item["engine"] == "rack1-b.fox-0"
    assert {"what", "value", "how"} == set(item["steps"][0])


def test_diff_exits_1_when_something_would_move(capsys, tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("models: {acme/Fox2.5-7B: {versions: {v1: 50, v2: 50}}}")
    argv = ["diff", "--catalog", CATALOG, "--policy", POLICY, "-o", "json"]
    assert run_app([*argv, "--to-policy", str(policy)]) == 1
    value = json.loads(capsys.readouterr().out)
    assert any(change["field"] == "versions" for change in value["changes"])
    assert any(push["type"] == "RouteConfiguration" for push in value["pushes"])
    assert run_app(argv) == 0


@pytest.mark.parametrize("command", ["explain", "diff"])
def test_help_has_an_example(capsys, command):
    assert run_app([command, "--help"]) == 0
    assert f"Example: wattmesh {command}" in " ".join(capsys.readouterr().out.split())


def test_explain_asks_for_one_source(capsys):
    for options in ([], ["--catalog", CATALOG, "--admin-address", "unix:/run/x.sock"]):
        assert run_app(["explain", "acme/fox", *options]) == 2
        assert "either --catalog or --admin-address" in capsys.readouterr().err


def test_explain_without_a_control_plane_says_how_to_start_one(capsys, tmp_path):
    argv = ["explain", "acme/fox", "--admin-address", f"unix:{tmp_path}/none.sock"]
    assert main(argv) == 2
    assert "wattmesh up" in capsys.readouterr().err

"""The commands: what goes to which stream, and the exit status."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
import yaml

from control_plane.cli import main
from control_plane.cli.output import PLAN_COLUMNS
from tests.support.consul_json import consul_answer, consul_entry

COMMANDS = (
    "plan",
    "resources",
    "validate",
    "bootstrap",
    "control-plane",
    "agent",
    "lkg",
    "status",
    "quarantine",
    "up",
)


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    def run_command(*argv: object) -> Ran:
        status = main([str(argument) for argument in argv])
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    yield run_command
    structlog.reset_defaults()  # a command's logs go to a stream that ends with the test


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    path = tmp_path / "catalog.json"
    path.write_bytes(
        consul_answer(
            consul_entry("a.e1", port=9901, gpu_power="100"),
            consul_entry("b.e1", port=9902, gpu_power="300"),
        )
    )
    return path


@pytest.fixture
def bad_catalog(tmp_path: Path) -> Path:
    """Two good engines on two nodes, and one that cannot be used for two reasons."""
    path = tmp_path / "bad-catalog.json"
    bad = consul_entry("c.e1", port=9903, socket="relative", state="asleep")
    path.write_bytes(consul_answer(consul_entry("a.e1"), bad))
    return path


@pytest.fixture
def bad_policy(tmp_path: Path) -> Path:
    path = tmp_path / "bad-policy.yaml"
    path.write_text("retry_after: 5\nmodels: {m: {versions: {v1: -1}, nope: 1}}\n")
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(run: Run, command: str) -> None:
    ran = run(command, "--help")
    assert ran.status == 0
    assert f"Example: wattmesh {command}" in " ".join(ran.out.replace("│", " ").split())


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(["nonsense"], id="unknown command"),
        pytest.param(["plan"], id="missing option"),
        pytest.param(["plan", "--catalog", "x", "-o", "xml"], id="unknown form"),
        pytest.param(["bootstrap", "--role", "mid", "--node-id", "n"], id="unknown role"),
    ],
)
def test_usage_errors_are_2_and_say_so_on_stderr(run: Run, argv: list[str]) -> None:
    ran = run(*argv)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err


def test_help_is_quick() -> None:
    best_s = float("inf")
    for _ in range(3):
        started_s = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "control_plane.cli", "--help"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        best_s = min(best_s, time.monotonic() - started_s)
    bare_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    bare_s = time.monotonic() - bare_s
    assert best_s < max(0.5, 20 * bare_s)


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from control_plane.cli import main; main(['--help']);"
        "sys.exit(' '.join({'grpc', 'aiohttp', 'envoy', 'pydantic'} & set(sys.modules)) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_plan_as_a_table(run: Run, catalog: Path) -> None:
    ran = run("plan", "--catalog", catalog)
    assert (ran.status, ran.err) == (0, "")
    header, *rows = ran.out.splitlines()
    assert header.split() == list(PLAN_COLUMNS)
    assert "100 (metadata)" in rows[0]
    assert "75.0 %" in rows[1]


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_plan_as_data(run: Run, catalog: Path, output: str) -> None:
    ran = run("plan", "--catalog", catalog, "-o", output)
    value = yaml.safe_load(ran.out)
    assert set(value) == {
        "edges",
        "engines",
        "models",
        "pools",
        "problems",
        "request_limit",
    }
    engine = value["engines"][1]
    assert engine == {
        "node": "b",
        "engine": "e1",
        "id": "b.e1",
        "model": "acme/fox",
        "version": "",
        "gpu": None,
        "gpu_count": None,
        "gpu_power_limit_w": None,
        "gpu_power": 300.0,
        "power_source": "metadata",
        "capacity": 300.0,
        "prefill_tokens_per_s": None,
        "decode_tokens_per_s": None,
        "weight": 810_000,
        "max_connections": 288,
        "state": "ready",
        "share": 0.75,
    }
    assert value["pools"][0]["endpoints"][1]["weight"] == 810_000


def test_plan_drops_a_bad_engine_and_tells_all_its_problems(run: Run, bad_catalog: Path) -> None:
    ran = run("plan", "--catalog", bad_catalog, "-o", "json")
    assert ran.status == 0
    assert [engine["id"] for engine in json.loads(ran.out)["engines"]] == ["a.e1"]
    assert len(ran.err.splitlines()) == 2
    assert "'relative'" in ran.err
    assert "'asleep'" in ran.err


def test_bad_files_give_all_problems_of_both_and_2(
    run: Run, tmp_path: Path, bad_policy: Path
) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('[{"Node": ')
    ran = run("plan", "--catalog", broken, "--policy", bad_policy)
    assert (ran.status, ran.out) == (2, "")
    lines = ran.err.splitlines()
    assert [str(broken) in line for line in lines] == [True, False, False, False]
    for path in ("retry_after", "models.m.versions.v1", "models.m.nope"):
        assert any(f"{bad_policy}: {path} is " in line for line in lines)


@pytest.mark.parametrize(
    ("argv", "meanwhile"),
    [
        (["plan", "--catalog", "{no}"], "nothing is planned"),
        (["validate", "--catalog", "{catalog}", "--policy", "{no}"], "nothing is planned"),
        (["control-plane", "--catalog", "{no}"], "nothing is started"),
        (["control-plane", "--catalog", "{catalog}", "--policy", "{no}"], "nothing is started"),
        (["up", "--policy", "{no}", "--run-dir", "{dir}/run"], "nothing is started"),
        (["agent", "--node", "{no}"], "nothing is started"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_nothing_is_said_to_be_in_force_where_nothing_is(
    run: Run, catalog: Path, short_tmp_path: Path, argv: list[str], meanwhile: str
) -> None:
    no = short_tmp_path / "no-such-file"
    ran = run(*(text.format(no=no, catalog=catalog, dir=short_tmp_path) for text in argv))
    assert ran.status == 2
    (line,) = [line for line in ran.err.splitlines() if str(no) in line]
    assert line.endswith(f"; {meanwhile}")


def test_diff_tells_the_problems_of_all_four_files_at_once(run: Run, tmp_path: Path) -> None:
    names = [str(tmp_path / f"no-{number}") for number in range(4)]
    options = ("--catalog", "--policy", "--to-catalog", "--to-policy")
    ran = run("diff", *(text for pair in zip(options, names, strict=True) for text in pair))
    assert ran.status == 2
    assert [line.split(":")[0] for line in ran.err.splitlines()] == names


@pytest.mark.parametrize(
    ("role", "types"),
    [
        pytest.param(["--role", "edge"], {"Cluster", "Listener"}, id="edge"),
        pytest.param(["--role", "node", "--node", "b"], {"Cluster", "Listener"}, id="node"),
    ],
)
def test_resources_as_proto3_json(
    run: Run, catalog: Path, role: list[str], types: set[str]
) -> None:
    ran = run("resources", *role, "--catalog", catalog)
    value = json.loads(ran.out)
    assert ran.status == 0
    assert all(url.startswith("type.googleapis.com/envoy.") for url in value)
    filled = {url.rpartition(".")[2] for url, resources in value.items() if resources}
    assert types <= filled
    assert "acme_2Ffox" in [
        c["name"] for c in value["type.googleapis.com/envoy.config.cluster.v3.Cluster"]
    ]


def test_resources_of_an_unknown_node_names_the_known_ones(run: Run, catalog: Path) -> None:
    ran = run("resources", "--role", "node", "--node", "z", "--catalog", catalog)
    assert (ran.status, ran.out) == (2, "")
    assert "'z'" in ran.err
    assert "a, b" in ran.err


def test_validate_without_a_finding(run: Run, catalog: Path) -> None:
    ran = run("validate", "--catalog", catalog)
    assert (ran.status, ran.err) == (0, "")
    assert "2 engines on 2 nodes, 1 models: no finding" in ran.out


def test_validate_with_findings_is_1(run: Run, bad_catalog: Path) -> None:
    ran = run("validate", "--catalog", bad_catalog, "-o", "json")
    assert ran.status == 1
    assert len(json.loads(ran.out)["problems"]) == 2
    assert len(ran.err.splitlines()) == 2


def test_validate_of_bad_input_is_2(run: Run, catalog: Path, bad_policy: Path) -> None:
    assert run("validate", "--catalog", catalog, "--policy", bad_policy).status == 2


def test_bootstrap_prints_yaml(run: Run) -> None:
    ran = run(
        *("bootstrap", "--role", "edge", "--node-id", "edge-1", "--listen", "0.0.0.0:10000"),
        *("--xds-address", "10.0.0.5:18000", "--admin-socket", "/run/x.sock"),
    )
    value = yaml.safe_load(ran.out)
    assert value["node"]["id"] == "edge-1"
    assert value["admin"]["address"]["pipe"]["path"] == "/run/x.sock"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param(["--role", "edge", "--xds-address", "h:1"], "--listen", id="edge, no listen"),
        pytest.param(["--role", "node", "--xds-address", "h"], "HOST:PORT", id="no address"),
        pytest.param(
            ["--role", "node", "--xds-address", "unix:rel"], "absolute", id="relative socket"
        ),
        pytest.param(
            ["--role", "edge", "--xds-address", "h:1", "--listen", "h:2", "--tls-cert", "c"],
            "--tls-key",
            id="certificate without key",
        ),
    ],
)
def test_bootstrap_of_bad_input_is_2(run: Run, argv: list[str], expected: str) -> None:
    ran = run("bootstrap", "--node-id", "n", *argv)
    assert (ran.status, ran.out) == (2, "")
    assert expected in ran.err


def test_status_says_what_to_do_when_nothing_answers(run: Run, short_tmp_path: Path) -> None:
    ran = run("status", "--admin-address", f"unix:{short_tmp_path}/none.sock")
    assert (ran.status, ran.out) == (2, "")
    assert "wattmesh up" in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(["control-plane", "--catalog", "{catalog}"], id="control-plane"),
        pytest.param(["up", "--run-dir", "{dir}/run"], id="up"),
    ],
)
def test_a_bad_policy_stops_the_start(
    run: Run, argv: list[str], catalog: Path, bad_policy: Path, short_tmp_path: Path
) -> None:
    filled = [text.format(catalog=catalog, dir=short_tmp_path) for text in argv]
    ran = run(*filled, "--policy", bad_policy)
    assert ran.status == 2
    assert ran.err.count(str(bad_policy)) == 3


@pytest.mark.parametrize("option", ["--admin-address", "--xds-address"])
def test_a_directory_of_a_socket_that_cannot_be_made_is_named(
    run: Run, catalog: Path, short_tmp_path: Path, option: str
) -> None:
    (short_tmp_path / "file").touch()
    addresses = {
        "--admin-address": f"unix:{short_tmp_path}/run/admin.sock",
        "--xds-address": f"unix:{short_tmp_path}/run/xds.sock",
    } | {option: f"unix:{short_tmp_path}/file/s.sock"}
    argv = [text for pair in addresses.items() for text in pair]
    ran = run("control-plane", "--catalog", catalog, *argv)
    assert (ran.status, ran.out) == (2, "")
    assert f"the directory {short_tmp_path}/file is not there" in ran.err


def test_an_unknown_socket_group_stops_agent(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(
        "node: n\naddress: 127.0.0.1\nmesh_port: 1\nengines: []\nsocket_group: no-such-group\n"
    )
    ran = run("agent", "--node", path, "--run-dir", tmp_path / "run")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f"{path}: socket_group is 'no-such-group', expected a group")


def test_a_cache_needs_the_envoy_that_it_stands_beside(run: Run, tmp_path: Path) -> None:
    ran = run("agent", "--node", tmp_path / "node.yaml", "--lkg", tmp_path / "lkg")
    assert ran.status == 2
    assert "--lkg: expected with --xds-address" in ran.err


def test_a_directory_of_a_cache_that_cannot_be_made_stops_lkg(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = run("lkg", "--dir", tmp_path / "file" / "lkg", "--envoy-admin", tmp_path / "admin.sock")
    assert ran.status == 2
    assert "cache directory" in ran.err


def test_bootstrap_takes_several_control_planes_and_a_cache(run: Run) -> None:
    argv = ("bootstrap", "--role", "node", "--node-id", "n1", "--lkg", "/var/lib/wattmesh/n1")
    ran = run(*argv, "--xds-address", "10.0.0.1:18000", "--xds-address", "10.0.0.2:18000")
    assert ran.status == 0
    (cluster,) = yaml.safe_load(ran.out)["static_resources"]["clusters"]
    sizes = [len(group["lb_endpoints"]) for group in cluster["load_assignment"]["endpoints"]]
    assert sizes == [2, 1]
    assert run(*argv, "--xds-address", "unix:/a", "--xds-address", "b:1").status == 2


def test_a_bad_node_file_stops_agent_with_all_problems(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text("node: n\naddress: 127.0.0.1\nmesh_port: 0\nengines: [{name: e, gpu: x}]\n")
    ran = run("agent", "--node", path)
    assert (ran.status, ran.out) == (2, "")
    for where in ("mesh_port", "engines[0].model", "engines[0].gpu"):
        assert f"{path}: {where} is" in ran.err

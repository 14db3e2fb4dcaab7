"""`wattmesh up` as a user runs it: what it prints, and that nothing stays behind."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import paths
from tests.support.processes import wait_until

pytestmark = pytest.mark.envoy

# Simulated engines answer at the speed of the GPU they play; this is about the rest.
AIM_S = 10.0


@pytest.fixture
def environment() -> dict[str, str]:
    """No Consul: the embedded registry."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CONSUL_")}
    return kept | {"PATH": "/nonexistent", "COLUMNS": "200"}


def up(run_dir: Path, *argv: str) -> list[str]:
    return [*paths.wattmesh(), "up", "--run-dir", str(run_dir), *argv]


def left_behind(run_dir: Path) -> list[str]:
    """Return what a run left: processes that name its directory, and files that are not logs.

    The mark stays, by which the next run knows the directory as its own.
    """
    kept = {"logs", ".wattmesh-run-dir"}
    processes = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = command.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(run_dir) in line:
            processes.append(line)
    return [*processes, *(path.name for path in run_dir.iterdir() if path.name not in kept)]


def test_once_prints_table_answer_and_addresses(
    short_tmp_path: Path, environment: dict[str, str]
) -> None:
    run_dir = short_tmp_path / "run"
    done = subprocess.run(
        up(run_dir, "--once"),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    assert "registry: embedded" in done.stderr
    header, *rows = done.stdout.splitlines()
    assert header.split()[:2] == ["engine", "node"]
    assert [row.split()[-1] for row in rows[:3]] == ["ready"] * 3
    answered = re.search(
        r"First answer of (\S+), ([\d.]+) s after the start:\n  (\w+)", done.stdout
    )
    assert answered is not None, done.stdout
    assert float(answered[2]) < 3 * AIM_S  # on any machine; the aim itself is measured elsewhere
    for part in ("/v1/chat/completions", "openai.OpenAI(", "unix:", "/wattmesh/engines/"):
        assert part in done.stdout
    assert left_behind(run_dir) == []


@pytest.fixture
def running(
    short_tmp_path: Path, environment: dict[str, str]
) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    run_dir = short_tmp_path / "run"
    with (short_tmp_path / "out").open("w") as out:
        process = subprocess.Popen(up(run_dir), env=environment, stdout=out, stderr=out, text=True)
    wait_until(
        lambda: "running; Ctrl-C" in (short_tmp_path / "out").read_text(), "up", timeout_s=60
    )
    yield process, run_dir
    if process.poll() is None:
        process.terminate()
        process.wait(timeout=30)


def test_a_running_mesh_serves_shows_its_status_and_stops_without_a_trace(
    running: tuple["subprocess.Popen[str]", Path], environment: dict[str, str]
) -> None:
    process, run_dir = running
    out = (run_dir.parent / "out").read_text()
    base_url = re.search(r"OpenAI API +(\S+)", out)
    assert base_url is not None
    models = httpx.get(f"{base_url[1]}/models").json()
    assert {"acme/fox-7b", "acme/mouse-1b"} <= {model["id"] for model in models["data"]}

    status = subprocess.run(
        [
            *paths.wattmesh(),
            "status",
            "--admin-address",
            f"unix:{run_dir}/admin.sock",
            "-o",
            "json",
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert status.returncode == 0, status.stderr
    value = json.loads(status.stdout)
    assert [stream["node"] for stream in value["streams"]] == ["edge", "node-a", "node-b"]
    assert {kind["state"] for s in value["streams"] for kind in s["types"]} == {"SYNCED"}

    second = subprocess.run(
        up(run_dir, "--once"), env=environment, capture_output=True, text=True, check=False
    )
    assert second.returncode == 2
    assert f"process {process.pid}" in second.stderr

    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 0
    assert left_behind(run_dir) == []


def test_a_second_interrupt_leaves_no_process(
    running: tuple["subprocess.Popen[str]", Path],
) -> None:
    process, run_dir = running
    process.send_signal(signal.SIGINT)
    wait_until(
        lambda: "stopping" in (run_dir.parent / "out").read_text(), "first signal", timeout_s=10
    )
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130
    wait_until(
        lambda: not [line for line in left_behind(run_dir) if "/" in line],
        "all processes gone",
        timeout_s=10,
    )


def test_what_a_killed_run_left_is_ended_by_the_next(
    running: tuple["subprocess.Popen[str]", Path], environment: dict[str, str]
) -> None:
    process, run_dir = running
    process.kill()
    process.wait()
    orphans = [line for line in left_behind(run_dir) if "/" in line]
    assert len(orphans) == 6  # three engines, two nodes' Envoys and the edge
    done = subprocess.run(
        up(run_dir, "--once"), env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ended 6 processes" in done.stderr
    assert left_behind(run_dir) == []


def test_a_busy_port_that_was_asked_for_is_refused(
    running: tuple["subprocess.Popen[str]", Path], environment: dict[str, str]
) -> None:
    _, run_dir = running
    base_url = re.search(r"OpenAI API +http://([^/]+)/", (run_dir.parent / "out").read_text())
    assert base_url is not None
    other = subprocess.run(
        up(run_dir.parent / "other", "--once", "--listen", base_url[1]),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode == 2
    assert "it is in use" in other.stderr


@pytest.mark.consul
def test_with_consul_on_path_it_runs_and_ends_one(
    short_tmp_path: Path, environment: dict[str, str]
) -> None:
    run_dir = short_tmp_path / "run"
    consul = paths.consul()
    assert consul is not None
    done = subprocess.run(
        up(run_dir, "--once"),
        env=environment | {"PATH": str(Path(consul).parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    assert "agent -dev at http://127.0.0.1:" in done.stderr
    assert "First answer of" in done.stdout
    assert left_behind(run_dir) == []

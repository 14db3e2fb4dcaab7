"""What signals do to a long command."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import wait_until

SCRIPT = """
import asyncio, subprocess, sys
from control_plane.cli.runtime import run_until_signal

async def command(stops_s):
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    print(child.pid, flush=True)
    try:
        await asyncio.sleep(float(sys.argv[1]))
        return 1
    finally:
        await asyncio.sleep(stops_s)
        child.kill()
        child.wait()
        print("stopped", flush=True)

sys.exit(run_until_signal(command(float(sys.argv[2])), on_first=lambda: print("on", flush=True)))
"""


def start(runs_s: float, stops_s: float, *wrapper: str) -> tuple["subprocess.Popen[str]", int]:
    process = subprocess.Popen(
        [*wrapper, sys.executable, "-c", SCRIPT, str(runs_s), str(stops_s)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def has_ended(pid: int) -> bool:
    """Whether a process is gone; one that nobody has reaped yet is."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return True
    return status.rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_stops_in_order(number: signal.Signals) -> None:
    process, child = start(60, 0.1)
    process.send_signal(number)
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out.split()) == (0, ["on", "stopped"])
    wait_until(lambda: has_ended(child), "the child's end", timeout_s=5)


def test_a_command_under_nohup_outlives_its_terminal() -> None:
    process, child = start(0.5, 0, "nohup")
    process.send_signal(signal.SIGHUP)
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out.split()) == (1, ["stopped"])
    wait_until(lambda: has_ended(child), "the child's end", timeout_s=5)


def test_the_second_signal_ends_children_at_once() -> None:
    process, child = start(60, 60)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130
    wait_until(lambda: has_ended(child), "the child's end", timeout_s=5)


def test_a_command_that_ends_by_itself_keeps_its_status() -> None:
    process, _ = start(0.01, 0)
    process.communicate(timeout=10)
    assert process.returncode == 1

"""Processes that are kept running, and ended with everything they started."""

import asyncio
import os
import sys
from itertools import pairwise

import pytest

from engines.launcher import Command
from engines.sockets import SocketError
from engines.supervisor import Supervised
from tests.support.eventually import eventually
from tests.support.processes import command_line


def supervised(path, code, **options):
    command = Command(
        name="stub", argv=(sys.executable, "-c", code), env=dict(os.environ), umask=0o007
    )
    return Supervised(command, log_dir=path, **options)


async def stop(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_process_that_dies_is_started_again(short_tmp_path):
    exits = []
    process = supervised(short_tmp_path, "print('bye')", on_exit=lambda: exits.append(1))
    task = asyncio.ensure_future(process.run())
    await eventually(lambda: process.restarts >= 2, within_s=20)
    await stop(task)
    assert len(exits) >= 2
    assert (short_tmp_path / "stub.log").read_text() == "bye\n"


async def test_back_off_grows(short_tmp_path):
    times = []
    process = supervised(
        short_tmp_path, "", on_exit=lambda: times.append(asyncio.get_running_loop().time())
    )
    task = asyncio.ensure_future(process.run())
    await eventually(lambda: len(times) == 4, within_s=30)
    await stop(task)
    first, *_, last = [later - earlier for earlier, later in pairwise(times)]
    assert last > 1.5 * first


async def test_it_is_asked_to_end_first(short_tmp_path):
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('asked', flush=True), sys.exit(0)))\n"
        "print('up', flush=True)\n"
        "time.sleep(60)"
    )
    process = supervised(short_tmp_path, code)
    task = asyncio.ensure_future(process.run())
    log = short_tmp_path / "stub.log"
    await eventually(lambda: log.exists() and "up" in log.read_text(), within_s=10)
    await stop(task)
    assert "asked" in log.read_text()
    assert process.pid is None


async def test_what_does_not_end_is_killed_with_its_children(short_tmp_path):
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)"
    )
    process = supervised(short_tmp_path, code, stop_grace_s=0.3)
    task = asyncio.ensure_future(process.run())
    log = short_tmp_path / "stub.log"
    await eventually(lambda: log.exists() and log.read_text().strip(), within_s=10)
    child = int(log.read_text())
    assert command_line(child)
    await stop(task)
    await eventually(lambda: not command_line(child))


async def test_children_of_a_dead_process_do_not_outlive_it(short_tmp_path):
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)"
    )
    process = supervised(short_tmp_path, code)
    task = asyncio.ensure_future(process.run())
    await eventually(lambda: process.restarts >= 1, within_s=10)
    child = int((short_tmp_path / "stub.log").read_text().split()[0])
    await eventually(lambda: not command_line(child))
    await stop(task)


async def test_what_may_not_start_yet_is_tried_again(short_tmp_path):
    refusals = [SocketError("/s", "has a live server", "a free one")]

    def prepare():
        if refusals:
            raise refusals.pop()

    process = supervised(short_tmp_path, "import time; time.sleep(60)", prepare=prepare)
    task = asyncio.ensure_future(process.run())
    await eventually(lambda: process.pid, within_s=10)
    assert process.restarts == 1
    await stop(task)


async def test_a_start_waits_until_it_may(short_tmp_path):
    gate = asyncio.Event()
    process = supervised(short_tmp_path, "import time; time.sleep(60)", may_start=gate.wait)
    task = asyncio.ensure_future(process.run())
    await asyncio.sleep(0.3)
    assert (process.pid, process.restarts) == (None, 0)
    gate.set()
    await eventually(lambda: process.pid, within_s=10)
    await stop(task)
    assert process.pid is None


async def test_it_can_be_stopped_while_it_may_not_start(short_tmp_path):
    process = supervised(short_tmp_path, "", may_start=asyncio.Event().wait)
    task = asyncio.ensure_future(process.run())
    await asyncio.sleep(0.05)
    await stop(task)
    assert task.cancelled()


@pytest.mark.parametrize("argv", [("/no/such/program",), ("/etc/passwd",), ("sleep", "\0")])
async def test_a_program_that_cannot_be_run_is_tried_again(short_tmp_path, argv):
    process = Supervised(Command(name="stub", argv=argv, env={}), log_dir=short_tmp_path)
    task = asyncio.ensure_future(process.run())
    await eventually(lambda: process.restarts >= 1, within_s=10)
    await stop(task)

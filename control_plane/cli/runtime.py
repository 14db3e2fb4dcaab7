"""Running a long command: its event loop, and what the signals mean.

The first SIGINT, SIGTERM or SIGHUP cancels the command, which then stops everything in order. The
second ends every child's process group at once and leaves.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

_FORCED_STATUS = 130  # as a shell reports a process that SIGINT ended


def run_until_signal(
    command: Coroutine[Any, Any, int],
    *,
    on_first: Callable[[], None] = lambda: None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> int:
    """Run a command and return its exit status; 0 when a signal ended it in order.

    Whoever starts processes keeps asyncio's own loop: uvloop's cannot give a child its umask.
    """
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(_with_signals(command, on_first))


async def _with_signals(command: Coroutine[Any, Any, int], on_first: Callable[[], None]) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(command)
    signalled = False

    def note_signal() -> None:
        nonlocal signalled
        if signalled:
            _kill_children()
            os._exit(_FORCED_STATUS)
        signalled = True
        on_first()
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, *_hang_up()):
        loop.add_signal_handler(number, note_signal)
    try:
        return await task
    except asyncio.CancelledError:
        if not signalled:
            raise
        return 0


def _hang_up() -> list[signal.Signals]:
    """Return SIGHUP, as a terminal that closes sends it; nothing where nohup had it ignored."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [] if ignored else [signal.SIGHUP]


def _kill_children() -> None:
    """End our children with their process groups; each was started as the leader of one."""
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text(encoding="ascii").split():
            try:
                os.killpg(int(pid), signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue  # gone already, or no leader of a group

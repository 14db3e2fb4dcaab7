"""One supervised process: started, restarted with back-off when it dies, and ended for good.

A process gets a session of its own, so that ending it ends its children too (vLLM's engine core,
for one). Back-off grows from half a second to half a minute and starts over after a minute of
steady running.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
from tenacity import RetryCallState, wait_exponential_jitter

from control_plane.errors import WattmeshError
from engines.launcher import Command

logger = structlog.get_logger()

_STEADY_S = 60.0
_BACK_OFF = wait_exponential_jitter(multiplier=0.5, max=30.0, exp_base=2, jitter=0.5)
_KILL_GRACE_S = 2.0
_POLL_S = 0.02
_TAIL_BYTES = 2000


async def _at_once() -> None:
    """Let a start go ahead."""


class Supervised:
    """Runs a command until stopped.

    Before every start `may_start` is awaited, as long as it takes; then `prepare` is called and may
    refuse, which counts as a failed start.
    """

    def __init__(
        self,
        command: Command,
        *,
        log_dir: Path,
        stop_grace_s: float = 30.0,
        may_start: Callable[[], Awaitable[object]] = _at_once,
        prepare: Callable[[], None] = lambda: None,
        on_exit: Callable[[], None] = lambda: None,
    ) -> None:
        self.command = command
        self.restarts = 0
        self._log_path = log_dir / f"{command.name}.log"
        self._stop_grace_s = stop_grace_s
        self._may_start = may_start
        self._prepare = prepare
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process ID while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def run(self) -> None:
        """Keep the process running until cancelled; then end it, bounded by the grace time."""
        failures = 0
        while True:
            await self._may_start()
            started = time.monotonic()
            try:
                await self._run_once()
            finally:
                await self._end()
            failures = 0 if time.monotonic() - started > _STEADY_S else failures
            failures += 1
            self.restarts += 1
            await asyncio.sleep(_back_off_s(failures))

    async def _run_once(self) -> None:
        """Start the process and wait for its end."""
        try:
            self._prepare()
            self._process = await self._start()
        except (WattmeshError, OSError, ValueError) as error:  # ValueError: no argument or variable
            logger.warning("not started, trying again", name=self.command.name, reason=str(error))
            return
        logger.info("started", name=self.command.name, pid=self._process.pid)
        status = await self._process.wait()
        logger.warning(
            "ended, starting again",
            name=self.command.name,
            status=status,
            log=str(self._log_path),
            last_lines=self._tail(),
        )
        self._on_exit()

    async def _start(self) -> asyncio.subprocess.Process:
        with self._log_path.open("wb") as log:
            return await asyncio.create_subprocess_exec(
                *self.command.argv,
                env=dict(self.command.env),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                umask=self.command.umask,
            )

    async def _end(self) -> None:
        """End the process and every child it left, whatever state they are in.

        Runs while the task is being cancelled, where asyncio.timeout of Python 3.11.2 (Debian 12)
        lets the cancellation through instead of ending a wait; asyncio.wait does not.
        """
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            _signal_group(process.pid, signal.SIGTERM)
            if not await _has_ended(process, self._stop_grace_s):
                logger.warning("did not end in time, killed", name=self.command.name)
        _signal_group(process.pid, signal.SIGKILL)
        await _has_ended(process, _KILL_GRACE_S)
        if not await _is_group_gone(process.pid, _KILL_GRACE_S):
            logger.warning("processes outlive SIGKILL", name=self.command.name, group=process.pid)
        self._process = None

    def _tail(self) -> list[str]:
        """Return the last lines of the process's own log."""
        with self._log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return log.read().decode(errors="replace").splitlines()[-5:]


async def _has_ended(process: asyncio.subprocess.Process, within_s: float) -> bool:
    waiting = asyncio.ensure_future(process.wait())
    done, _ = await asyncio.wait([waiting], timeout=within_s)
    waiting.cancel()
    return bool(done)


async def _is_group_gone(group: int, within_s: float) -> bool:
    """Wait until nobody of a killed process group is left: children take a moment to go."""
    deadline = time.monotonic() + within_s
    while _signal_group(group, 0):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_POLL_S)
    return True


def _back_off_s(failures: int) -> float:
    state = RetryCallState(None, None, (), {})  # type: ignore[arg-type]
    state.attempt_number = failures
    return float(_BACK_OFF(state))


def _signal_group(pid: int, number: int) -> bool:
    """Signal a process group; return whether anybody of it is left. 0 only asks."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):  # gone, or the number is somebody else's now
        return False
    return True

"""Real processes under test: each in a session of its own, with a log file, and a bounded end."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")
_POLL_S = 0.05


class NotReadyError(AssertionError):
    """Something did not become true in time; the message shows the last log lines."""


class Process:
    """One started program. Ended by its own process ID, never by name."""

    def __init__(
        self, name: str, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """The exit status; None while it runs."""
        return self._popen.poll()

    def tail(self, lines: int = 25) -> str:
        """Return the last lines of the log."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return "\n".join([f"--- {self.name}: {self.log}", *text.splitlines()[-lines:]])

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process itself, not to its group."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """End it as a crash would: SIGKILL to it alone."""
        self._popen.kill()
        self._popen.wait(10)

    def stop(self, timeout_s: float = 20.0) -> int:
        """Ask it to end, then make it; return the exit status. Its session is cleared after it."""
        if self._popen.poll() is None:
            self._popen.terminate()
            try:
                self._popen.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._popen.kill()
        status = self._popen.wait(10)
        clear_session(self.pid)
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def wait_until(
    condition: Callable[[], T],
    what: str,
    *,
    timeout_s: float,
    processes: Sequence[Process] = (),
) -> T:
    """Return the condition's first true value. Raise NotReadyError at the deadline.

    An error that the condition raises counts as "not yet". A process that ended meanwhile ends
    the wait at once: nothing it was to do will happen any more.
    """
    deadline = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = value = condition()
        except Exception as error:  # noqa: BLE001 any failure of a probe means "not yet"
            last = error
        else:
            if value:
                return value
        dead = [p for p in processes if p.returncode is not None]
        if dead:
            raise NotReadyError(
                _report(f"{dead[0].name} ended ({dead[0].returncode}) before {what}", last, dead)
            )
        time.sleep(_POLL_S)
    raise NotReadyError(_report(f"not within {timeout_s:g} s: {what}", last, processes))


def _report(what: str, last: object, processes: Sequence[Process]) -> str:
    return "\n".join([f"{what}; last seen: {last!r:.500}", *(p.tail() for p in processes)])


def children(pid: int) -> list[int]:
    """Return the living descendants of a process, in no order."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue  # ended meanwhile
        state, parent = stat.rpartition(")")[2].split()[:2]
        if state != "Z":
            parents.setdefault(int(parent), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        direct = parents.get(todo.pop(), [])
        found += direct
        todo += direct
    return found


def command_line(pid: int) -> list[str]:
    """Return a process's arguments; empty when it is gone."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return raw.decode(errors="replace").split("\0")[:-1]


def listening_tcp_ports(pid: int) -> list[int]:
    """Return the TCP ports on which a process itself listens."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(fd.readlink())
        except OSError:
            continue  # closed meanwhile
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])
    ports = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:  # 0A: LISTEN
                ports.append(int(fields[1].rpartition(":")[2], 16))
    return ports


def clear_session(session: int) -> None:
    """Kill what is left in a session that a test started (a crashed parent's children)."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if os.getsid(int(entry.name)) == session:
                os.kill(int(entry.name), signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue

"""Processes of a mesh whose `wattmesh up` was killed hard, and so could not end them.

An Envoy left over would connect to the next mesh in its directory and pass for one of its own.
A process is a leftover when it is ours and was started with a file that only a mesh in this
directory makes: a bootstrap, an engine's socket, Consul's PID file. To be called with the
directory's lock held: then no living mesh owns them.
"""

import contextlib
import itertools
import os
import signal
from collections.abc import Sequence
from pathlib import Path

_MADE_HERE = {"-c": ".envoy.yaml", "--uds": ".sock", "-pid-file": ".pid"}  # by option
_PROC = Path("/proc")


def end_leftovers(run_dir: Path) -> int:
    """End what a killed mesh left running, each with its process group; return how many."""
    leftovers = [pid for pid in _our_processes() if is_leftover(_argv(pid), run_dir)]
    for pid in leftovers:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    return len(leftovers)


def is_leftover(argv: Sequence[str], run_dir: Path) -> bool:
    """Whether a command line is that of an engine, an Envoy or a Consul of this directory."""
    return any(
        value.startswith(f"{run_dir}/") and value.endswith(_MADE_HERE[option])
        for option, value in itertools.pairwise(argv)
        if option in _MADE_HERE
    )


def _our_processes() -> list[int]:
    """Return the leaders of process groups that run as our user; none where /proc is not."""
    found = []
    for path in _PROC.glob("[0-9]*"):
        pid = int(path.name)
        with contextlib.suppress(OSError):
            if path.stat().st_uid == os.getuid() and os.getpgid(pid) == pid != os.getpgrp():
                found.append(pid)
    return found


def _argv(pid: int) -> list[str]:
    try:
        return os.fsdecode((_PROC / str(pid) / "cmdline").read_bytes()).split("\0")
    except OSError:
        return []

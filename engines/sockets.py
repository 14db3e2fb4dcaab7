"""Unix sockets of engines and servers: whose path it is, and who may connect.

A socket file says nothing about health: a process killed hard leaves it behind. Only a refused
connection proves that nobody listens, and only then is the file removed.
"""

import errno
import grp
import os
import shutil
import socket
import stat
from pathlib import Path

from control_plane.errors import WattmeshError, shown
from control_plane.metadata import socket_path_fault

SOCKET_UMASK = 0o117  # for the moment of a bind: the socket is 0660 from the start
ENGINE_UMASK = 0o007  # what an engine creates is for its user and group, nobody else
SOCKET_MODE = 0o660
_DIRECTORY_MODE = 0o2750  # setgid: sockets made inside belong to the directory's group
_PROBE_TIMEOUT_S = 1.0


class SocketError(WattmeshError):
    """A socket path that cannot be used."""

    def __init__(self, path: str, found: str, expected: str) -> None:
        self.path = path
        super().__init__(
            f"socket {shown(path)}: {found}, expected {expected}; "
            "nothing is started there and the path is left untouched"
        )


def claim_socket(path: str) -> None:
    """Make a path free to bind: remove a dead process's socket, refuse everything else.

    Raise SocketError when the path is too long, a live server listens on it, or it holds anything
    but a socket.
    """
    fault = socket_path_fault(path)
    if fault:
        raise SocketError(path, "cannot be bound", fault)
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketError(path, f"is {_kind(mode)}", "a free path or a leftover socket")
    if is_listening(path):
        raise SocketError(path, "has a live server", "a path that no other process serves")
    Path(path).unlink(missing_ok=True)


def restrict_socket(path: str) -> None:
    """Give a socket its mode. Under ENGINE_UMASK it was never open to others before.

    A umask that gave sockets this mode would take the search bit from directories too, and with
    it every temporary directory from an engine that does not run as root.
    """
    Path(path).chmod(SOCKET_MODE)


def release_socket(path: str) -> None:
    """Remove the socket file of a server that has ended."""
    Path(path).unlink(missing_ok=True)


def is_listening(path: str) -> bool:
    """Whether somebody accepts connections on the socket. A full listen queue counts as alive."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT_S)
        try:
            probe.connect(path)
        except OSError as error:
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    return True


def make_socket_directory(path: str, group: str | None) -> None:
    """Create the directory of a host's engine sockets; with a group, Envoy's user joins that."""
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    if group is not None:
        shutil.chown(directory, group=group)
        directory.chmod(_DIRECTORY_MODE)


def group_fault(group: str) -> str | None:
    """Return what a socket group should have been, or None when this host has it."""
    try:
        grp.getgrnam(group)
    except (KeyError, ValueError):
        return "a group of this host"
    return None


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISDIR(mode):
        return "a directory"
    return "a regular file" if stat.S_ISREG(mode) else "no socket"

"""The run directory: sockets and generated files of one mesh on one machine, for one user.

Mode 0700, because who can connect to the sockets in it can read prompts and stop Envoys. A
directory of somebody else is refused, so that nobody in /tmp can lay one out for us. It is emptied
when a mesh ends, so one that holds anything is taken over only when a mark says that it is ours.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from control_plane.errors import WattmeshError, shown

ADMIN_SOCKET = "admin.sock"
XDS_SOCKET = "xds.sock"
_LOCK = "lock"
_MARK = ".wattmesh-run-dir"
_KEPT = frozenset({_LOCK, _MARK, "logs", "tiny-model"})  # when a mesh ends


class RunDirError(WattmeshError):
    """A run directory that cannot be used."""


def default_run_dir() -> Path:
    """Return where `wattmesh up` keeps its sockets unless told otherwise."""
    uid = os.getuid()
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp") / f"wattmesh-{uid}"  # noqa: S108


def default_admin_address() -> str:
    """Return the admin address that `status` asks: the environment's, else that of `up`."""
    named = os.environ.get("WATTMESH_ADMIN_ADDRESS")
    return named or f"unix:{default_run_dir() / ADMIN_SOCKET}"


def make_run_dir(path: Path) -> Path:
    """Create the directory, or take over our own. Raise RunDirError when it is not ours."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    stat = path.lstat()
    if not path.is_dir() or path.is_symlink():
        raise RunDirError(f"run directory {path} is no directory; give another with --run-dir")
    if stat.st_uid != os.getuid():
        raise RunDirError(
            f"run directory {path} belongs to user {stat.st_uid}, expected {os.getuid()}; "
            "give another with --run-dir"
        )
    others = sorted({item.name for item in path.iterdir()} - _KEPT)
    if others and not (path / _MARK).exists():
        raise RunDirError(
            f"run directory {path} holds {shown(others[0])} and was made by no mesh; nothing in it "
            "was touched; give a new or empty directory with --run-dir"
        )
    path.chmod(0o700)
    (path / _MARK).touch()
    return path


def clean_run_dir(path: Path) -> None:
    """Remove what a mesh leaves: sockets, bootstraps, sockets' directories. Logs stay."""
    for item in path.iterdir():
        if item.name in _KEPT:
            continue
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        else:
            item.unlink()


@contextlib.contextmanager
def hold_run_dir(path: Path) -> Iterator[None]:
    """Keep a second mesh out while the context is open; the kernel lets go when we die."""
    descriptor = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
            raise RunDirError(
                f"a mesh runs in {path} already (process {pid}); "
                "stop it first, or give another directory with --run-dir"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
        (path / _LOCK).unlink(missing_ok=True)
    finally:
        os.close(descriptor)

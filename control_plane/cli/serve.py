"""`wattmesh control-plane`: run until a signal. Files that are bad at the start are refused."""

from pathlib import Path

import uvloop

from control_plane.catalog import parse_catalog
from control_plane.catalog_files import read_file
from control_plane.cli import OK
from control_plane.cli.offline import load_policy
from control_plane.cli.runtime import run_until_signal
from control_plane.service import ControlPlaneConfig, run_control_plane
from observability.logs import configure_logs


def serve_control_plane(config: ControlPlaneConfig, *, level: str, as_json: bool) -> int:
    """Run a control plane and return its exit status. Raise InputError for bad files."""
    configure_logs(level, as_json=as_json)
    load_policy(config.policy)
    if config.catalog != "consul":
        source = config.catalog
        read_file(Path(source), lambda data: parse_catalog(data, source=source))

    async def run() -> int:
        await run_control_plane(config)
        return OK

    return run_until_signal(run(), loop_factory=uvloop.new_event_loop)

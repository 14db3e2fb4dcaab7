"""`wattmesh lkg`: one Envoy's last-known-good cache, until a signal."""

import uvloop

from control_plane.cli import OK
from control_plane.cli.runtime import run_until_signal
from control_plane.lkg.service import LkgConfig, run_lkg
from observability.logs import configure_logs


def serve_lkg(config: LkgConfig, *, level: str, as_json: bool) -> int:
    """Run a cache and return its exit status."""
    configure_logs(level, as_json=as_json)

    async def run() -> int:
        await run_lkg(config)
        return OK

    return run_until_signal(run(), loop_factory=uvloop.new_event_loop)

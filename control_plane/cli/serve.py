"""`wattmesh control-plane`: run until a signal. Files that are bad at the start are refused."""

from pathlib import Path

import uvloop

from control_plane.addresses import UnixSocket
from control_plane.cli import OK
from control_plane.cli.offline import NOTHING_STARTED, load_catalog, load_policy
from control_plane.cli.runtime import run_until_signal
from control_plane.errors import WattmeshError
from control_plane.service import ControlPlaneConfig, run_control_plane
from observability.logs import configure_logs


def serve_control_plane(config: ControlPlaneConfig, *, level: str, as_json: bool) -> int:
    """Run a control plane and return its exit status. Raise InputError for bad files."""
    configure_logs(level, as_json=as_json)
    load_policy(config.policy, meanwhile=NOTHING_STARTED)
    if config.catalog != "consul":
        load_catalog(Path(config.catalog), meanwhile=NOTHING_STARTED)
    for address in (*config.xds_addresses, config.admin_address):
        if isinstance(address, UnixSocket):
            _make_directory(address)

    async def run() -> int:
        await run_control_plane(config)
        return OK

    return run_until_signal(run(), loop_factory=uvloop.new_event_loop)


def _make_directory(address: UnixSocket) -> None:
    """Make the directory of a socket. Raise WattmeshError naming both when that is not possible."""
    directory = Path(address.path).parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WattmeshError(
            f"address {address}: the directory {directory} is not there and cannot be made "
            f"({error.strerror}); nothing is started"
        ) from error

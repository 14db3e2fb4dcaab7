"""`wattmesh quarantine`: what Envoys refused and is sent to nobody, and offering it again."""

import asyncio
from pathlib import Path
from typing import Any

from control_plane.addresses import HostPort, UnixSocket
from control_plane.cli import FINDING, OK
from control_plane.cli.admin_client import AdminError, ask_admin, post_admin
from control_plane.cli.output import Output, print_data, print_problems, print_table
from control_plane.cli.status import QUARANTINE_COLUMNS, quarantine_rows

_NOT_FOUND = 404


def print_quarantine(address: UnixSocket | HostPort, tls_dir: Path | None, output: Output) -> int:
    """Print what is quarantined; return 1 when there is anything."""
    (xds,) = asyncio.run(ask_admin(address, "/v1/xds/status", tls_dir=tls_dir))
    quarantined: list[dict[str, Any]] = xds["quarantined"]
    if output is not Output.TABLE:
        print_data(quarantined, output)
    elif quarantined:
        print_table("", QUARANTINE_COLUMNS, quarantine_rows(quarantined))
    else:
        print("nothing is quarantined")  # noqa: T201
    return FINDING if quarantined else OK


def clear_quarantine(
    address: UnixSocket | HostPort, tls_dir: Path | None, version: str | None
) -> int:
    """Offer a version again, or everything with None; return 1 when no such one is there."""
    body: dict[str, object] = {"all": True} if version is None else {"version": version}
    status, answer = asyncio.run(post_admin(address, "/v1/xds/quarantine/clear", body, tls_dir))
    if status == _NOT_FOUND and version is not None and "error" in answer:
        print_problems([answer["error"]["message"]])
        return FINDING
    if "cleared" not in answer:
        raise AdminError(f"{address} answered {status}: {answer['error']['message']}")
    for item in answer["cleared"]:
        print(f"{item['type']} {item['name']} {item['version']} is offered again")  # noqa: T201
    return OK

"""`wattmesh status`: is it ready, which engines are in force, what does every Envoy hold."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from control_plane.addresses import HostPort, UnixSocket
from control_plane.cli import FINDING, OK
from control_plane.cli.admin_client import ask_admin
from control_plane.cli.output import (
    ENGINE_COLUMNS,
    Output,
    engine_rows,
    print_data,
    print_problems,
    print_table,
)


def print_status(address: UnixSocket | HostPort, tls_dir: Path | None, output: Output) -> int:
    """Print the status and return the exit status: 1 when something is not as it should be."""
    paths = ("/ready", "/v1/plan", "/v1/xds/status")
    ready, plan, xds = asyncio.run(ask_admin(address, *paths, tls_dir=tls_dir))
    engines, streams = plan.get("engines", []), xds["streams"]
    quarantined, held = xds["quarantined"], xds["canary"]["held"]
    if output is Output.TABLE:
        print_table("Engines", ENGINE_COLUMNS, engine_rows(engines))
        print_table("\nEnvoys", ("node", "role", "version", "xDS"), _stream_rows(streams))
        if quarantined:
            title = "\nRefused by an Envoy, sent to nobody (the last acknowledged form is served)"
            print_table(title, QUARANTINE_COLUMNS, quarantine_rows(quarantined))
        if held:
            title = "\nTried by a few Envoys first; the others wait for their answer"
            columns = ("role", "change", "tried by", "waiting", "since")
            print_table(title, columns, _held_rows(held))
    else:
        value = {"ready": ready, "engines": engines, "streams": streams}
        print_data({**value, "quarantined": quarantined, "canary": xds["canary"]}, output)
    findings = list(_findings(ready, streams, quarantined))
    print_problems([*findings, *ready["problems"]])
    return FINDING if findings else OK


def _stream_rows(streams: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    return [
        [
            stream["node"],
            stream["role"],
            stream["envoy_version"],
            ", ".join(f"{t['type']} {t['state']} ({t['resources']})" for t in stream["types"]),
        ]
        for stream in streams
    ]


QUARANTINE_COLUMNS = ("type", "name", "version", "refused by", "reason")


def quarantine_rows(quarantined: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Return the table rows of quarantined contents."""
    return [
        [item["type"], item["name"], item["version"], item["node"], item["message"]]
        for item in quarantined
    ]


def _held_rows(held: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    return [
        [
            item["role"],
            ", ".join(f"{content['type']} {content['name']}" for content in item["contents"]),
            ", ".join(item["canaries"]),
            str(item["waiting_count"]),
            f"{datetime.fromtimestamp(item['since'], UTC):%H:%M:%S} UTC",
        ]
        for item in held
    ]


def _findings(
    ready: Mapping[str, Any],
    streams: Iterable[Mapping[str, Any]],
    quarantined: Iterable[Mapping[str, Any]],
) -> Iterable[str]:
    if not ready["ready"]:
        yield f"not ready: {ready['reason']}"
    for stream in streams:
        for kind in stream["types"]:
            if kind["state"] == "ERROR":
                who = f"{stream['role']} {stream['node']}"
                yield f"{who} refused {kind['type']}: {kind['last_error']}"
    for item in quarantined:
        yield f"{item['type']} {item['name']} is quarantined, {item['node']} refused it"

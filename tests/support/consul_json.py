"""Entries as Consul's /v1/health/service/wattmesh-engine answers them."""

import json
from typing import Any


def consul_entry(
    service_id: str = "a.e1", *, status: str = "passing", port: int = 9901, **meta: str
) -> dict[str, Any]:
    """Return one entry; keywords are metadata."""
    engine = service_id.rpartition(".")[2]
    base = {"model": "acme/fox", "socket": f"/run/wattmesh/{engine}.sock", "gpu_power": "100"}
    return {
        "Node": {"Node": "host", "Address": "127.0.0.1"},
        "Service": {
            "ID": service_id,
            "Service": "wattmesh-engine",
            "Address": "127.0.0.1",
            "Port": port,
            "Meta": base | meta,
        },
        "Checks": [{"CheckID": f"service:{service_id}", "Status": status}],
    }


def consul_answer(*entries: dict[str, Any]) -> bytes:
    """Return the body of an answer with these entries."""
    return json.dumps(entries).encode()

"""An Envoy's own account of itself, read over its admin socket."""

import json
from typing import Any

from tests.support import unix_http


class EnvoyAdmin:
    """The admin API of one running Envoy."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    def get(self, path: str) -> str:
        answer = unix_http.get(self._socket, path)
        assert answer.status == 200, f"{path}: {answer.status} {answer.text[:200]}"
        return answer.text

    def stats(self, prefix: str = "") -> dict[str, int]:
        """Return the counters and gauges whose names begin like this."""
        values = json.loads(self.get("/stats?format=json"))["stats"]
        return {
            item["name"]: item["value"]
            for item in values
            if "name" in item and item["name"].startswith(prefix)
        }

    def clusters(self) -> dict[str, dict[str, Any]]:
        """Return each cluster's state by name, as /clusters tells it."""
        statuses = json.loads(self.get("/clusters?format=json"))["cluster_statuses"]
        return {status["name"]: status for status in statuses}

    def hosts(self, cluster: str) -> dict[str, dict[str, Any]]:
        """Return a cluster's hosts by address ("127.0.0.1:20001" or a socket path)."""
        return {
            _address(host["address"]): host
            for host in self.clusters().get(cluster, {}).get("host_statuses", [])
        }

    def requests_by_host(self, cluster: str) -> dict[str, int]:
        """Return how many requests each host of a cluster got so far."""
        return {
            address: next(
                (int(s.get("value", 0)) for s in host["stats"] if s["name"] == "rq_total"), 0
            )
            for address, host in self.hosts(cluster).items()
        }

    def config_dump(self) -> list[dict[str, Any]]:
        configs: list[dict[str, Any]] = json.loads(self.get("/config_dump?include_eds"))["configs"]
        return configs

    def ready(self) -> bool:
        return self.get("/ready").strip() == "LIVE"


def _address(address: dict[str, Any]) -> str:
    if "pipe" in address:
        return str(address["pipe"]["path"])
    socket = address["socket_address"]
    return f"{socket['address']}:{socket['port_value']}"

"""A real Consul agent in dev mode: one server, everything in memory, all ports on loopback.

Dev mode keeps nothing, so a restart on the same port is the "started empty" of a lost cluster.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx

from tests.support.ports import free_ports
from tests.support.processes import Process, wait_until

_READY_S = 20.0


class ConsulServer:
    """One Consul agent; `start` after `stop` or `kill` comes back empty on the same ports."""

    def __init__(self, binary: str, root: Path) -> None:
        self._binary = binary
        self._root = root
        http, server, serf = free_ports(3)
        self.address = f"http://127.0.0.1:{http}"
        self._config = root / "consul.json"
        ports = {"http": http, "server": server, "serf_lan": serf}
        unused = {"dns": -1, "grpc": -1, "serf_wan": -1}
        if _version(binary) >= (1, 14):
            unused["grpc_tls"] = -1  # older ones refuse the key
        self._config.write_text(
            json.dumps(
                {
                    "ports": {**ports, **unused},
                    "node_name": "wattmesh-test",
                    "bind_addr": "127.0.0.1",
                    "client_addr": "127.0.0.1",
                    "disable_update_check": True,
                }
            )
        )
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        if self._process is None:
            raise RuntimeError("Consul was not started")
        return self._process

    def start(self) -> None:
        """Start it, empty, and wait until it has a leader."""
        self._process = Process(
            "consul",
            [self._binary, "agent", "-dev", "-log-level=warn", f"-config-file={self._config}"],
            log=self._root / "consul.log",
        )
        wait_until(
            lambda: self.get("/v1/status/leader"),
            "Consul has a leader",
            timeout_s=_READY_S,
            processes=[self._process],
        )

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()

    def get(self, path: str) -> Any:
        """Return the JSON answer to a GET."""
        return httpx.get(f"{self.address}{path}", timeout=5).raise_for_status().json()

    def put(self, path: str, body: object = None) -> None:
        httpx.put(f"{self.address}{path}", json=body, timeout=5).raise_for_status()

    def engines(self) -> dict[str, dict[str, Any]]:
        """Return the registered engines' entries by service ID."""
        entries = self.get("/v1/health/service/wattmesh-engine")
        return {entry["Service"]["ID"]: entry for entry in entries}

    def passing_engines(self) -> set[str]:
        """Return the IDs of the engines whose checks all pass."""
        return {
            service_id
            for service_id, entry in self.engines().items()
            if all(check["Status"] == "passing" for check in entry["Checks"])
        }

    def change_metadata(self, service_id: str, **changes: str) -> None:
        """Register a service again with changed metadata; its check and everything else stay.

        Registered without a check, Consul keeps the one it has.
        """
        service = self.get(f"/v1/agent/service/{service_id}")
        self.put(
            "/v1/agent/service/register",
            {
                "ID": service["ID"],
                "Name": service["Service"],
                "Address": service["Address"],
                "Port": service["Port"],
                "Tags": service["Tags"],
                "Meta": {**service["Meta"], **changes},
            },
        )


def _version(binary: str) -> tuple[int, ...]:
    text = subprocess.run([binary, "version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"v(\d+)\.(\d+)\.(\d+)", text)
    return tuple(map(int, match.groups())) if match else (0,)

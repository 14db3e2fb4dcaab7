"""`wattmesh status` against an admin API on TCP that reports trouble."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from control_plane.cli import main

STREAM = {
    "node": "edge-1",
    "role": "edge",
    "envoy_version": "1.40.0",
    "connected_since": 0.0,
    "types": [
        {"type": "Cluster", "state": "SYNCED", "resources": 2, "responses": 1, "last_error": ""},
        {
            "type": "Listener",
            "state": "ERROR",
            "resources": 1,
            "responses": 2,
            "last_error": "no such filter",
        },
    ],
}


REFUSAL = {
    "type_url": "type.googleapis.com/envoy.config.listener.v3.Listener",
    "type": "Listener",
    "name": "edge",
    "version": "0123456789abcdef",
    "node": "edge-1",
    "message": "no such filter",
    "refused_at": 0.0,
}

CANARY = {
    "bound_s": 5.0,
    "held": [
        {
            "role": "node",
            "since": 3661.5,
            "canaries": ["n7"],
            "waiting": ["n1", "n2"],
            "waiting_count": 2,
            "contents": [{"type": "Listener", "name": "mesh", "version": "fedcba9876543210"}],
        }
    ],
}

ANSWERS = {
    "/ready": {"ready": False, "reason": "no catalog yet", "problems": ["policy.yaml: bad"]},
    "/v1/plan": {"error": {"code": "not_ready", "message": "no catalog yet"}},
    "/v1/xds/status": {"streams": [STREAM], "quarantined": [REFUSAL], "canary": CANARY},
}


class Admin(BaseHTTPRequestHandler):
    """A control plane that is not ready and has a refused listener."""

    def do_GET(self) -> None:
        body = json.dumps(ANSWERS[self.path]).encode()
        self.send_response(503 if self.path == "/ready" else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def admin() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Admin) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_trouble_is_told_on_stderr_and_by_1(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--admin-address", admin]) == 1
    out, err = capsys.readouterr()
    assert "Cluster SYNCED (2), Listener ERROR (1)" in out
    assert "0123456789abcdef" in out
    (held,) = [line for line in out.splitlines() if "Listener mesh" in line]
    assert held.split() == ["node", "Listener", "mesh", "n7", "2", "01:01:01", "UTC"]
    assert err.splitlines() == [
        "not ready: no catalog yet",
        "edge edge-1 refused Listener: no such filter",
        "Listener edge is quarantined, edge-1 refused it",
        "policy.yaml: bad",
    ]


def test_as_data(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--admin-address", admin, "-o", "json"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["streams"] == [STREAM]
    assert value["ready"]["reason"] == "no catalog yet"
    assert value["canary"] == CANARY
    assert value["engines"] == []

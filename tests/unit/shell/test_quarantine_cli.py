"""`wattmesh quarantine` against an admin API on TCP that holds one refused listener."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from control_plane.cli import main

VERSION = "0123456789abcdef"
REFUSAL = {
    "type_url": "type.googleapis.com/envoy.config.listener.v3.Listener",
    "type": "Listener",
    "name": "edge",
    "version": VERSION,
    "node": "edge-1",
    "message": "no such filter",
    "refused_at": 0.0,
}


class Admin(BaseHTTPRequestHandler):
    """A control plane whose quarantine can be cleared."""

    quarantined: ClassVar[list[object]] = []
    asked: ClassVar[list[object]] = []

    def do_GET(self) -> None:
        assert self.path == "/v1/xds/status"
        self._answer(200, {"streams": [], "quarantined": self.quarantined})

    def do_POST(self) -> None:
        assert self.path == "/v1/xds/quarantine/clear"
        assert self.headers["Content-Type"] == "application/json"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        if body in ({"all": True}, {"version": VERSION}):
            self._answer(200, {"cleared": self.quarantined})
        elif body == {"version": "broken"}:
            self._answer(500, {"error": {"code": "internal", "message": "broken"}})
        else:
            self._answer(404, {"error": {"code": "not_found", "message": "no such version"}})

    def _answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def admin() -> Iterator[str]:
    Admin.quarantined, Admin.asked = [REFUSAL], []
    with ThreadingHTTPServer(("127.0.0.1", 0), Admin) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("command", ["list", "clear"])
def test_each_has_help_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quarantine", command, "--help"]) == 0
    assert f"Example: wattmesh quarantine {command}" in capsys.readouterr().out


def test_a_refused_content_is_a_finding(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quarantine", "list", "--admin-address", admin]) == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.split() == ["Listener", "edge", VERSION, "edge-1", "no", "such", "filter"]
    assert main(["quarantine", "list", "--admin-address", admin, "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out) == [REFUSAL]


def test_an_empty_quarantine_is_fine(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    Admin.quarantined = []
    assert main(["quarantine", "list", "--admin-address", admin]) == 0
    assert capsys.readouterr().out == "nothing is quarantined\n"
    assert main(["quarantine", "list", "--admin-address", admin, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("argument", "asked"), [(VERSION, {"version": VERSION}), ("--all", {"all": True})]
)
def test_clear_says_what_is_offered_again(
    admin: str, capsys: pytest.CaptureFixture[str], argument: str, asked: object
) -> None:
    assert main(["quarantine", "clear", argument, "--admin-address", admin]) == 0
    assert Admin.asked == [asked]
    assert capsys.readouterr().out == f"Listener edge {VERSION} is offered again\n"


def test_an_unknown_version_is_a_finding(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quarantine", "clear", "unknown", "--admin-address", admin]) == 1
    assert capsys.readouterr() == ("", "no such version\n")


def test_a_server_that_fails_is_told(admin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quarantine", "clear", "broken", "--admin-address", admin]) == 2
    assert "answered 500: broken" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], [VERSION, "--all"]], ids=["neither", "both"])
def test_clear_wants_one_version_or_all(
    admin: str, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(["quarantine", "clear", *arguments, "--admin-address", admin]) == 2
    assert "VERSION or --all" in capsys.readouterr().err
    assert Admin.asked == []

"""GET over a Unix socket, with the standard library.

httpx leaks the socket of a refused Unix connection, which the tests would report as a warning.
"""

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A status and a body."""

    status: int
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def get(socket_path: str, path: str, *, timeout_s: float = 5.0) -> Answer:
    """Return the answer to one GET. Raise OSError when nobody listens."""
    connection = _UnixConnection(socket_path, timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return Answer(status=response.status, text=response.read().decode())
    finally:
        connection.close()

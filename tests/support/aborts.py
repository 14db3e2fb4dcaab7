"""Callers that go away in the middle of a request: connection closed, or HTTP/2 stream reset."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import h2.config
import h2.connection
import h2.errors

PATH = "/v1/chat/completions"


@contextmanager
def http1_request(url: str, body: dict[str, Any]) -> Iterator[Callable[[], None]]:
    """Send a request by HTTP/1.1; what is yielded closes its connection."""
    host, port = _address(url)
    data = json.dumps(body).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: {host}:{port}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection((host, port), timeout=10) as connection:
        connection.sendall(head.encode() + data)
        yield connection.close


@contextmanager
def http2_request(url: str, body: dict[str, Any]) -> Iterator[Callable[[], None]]:
    """Send a request by HTTP/2; what is yielded resets its stream, not the connection."""
    host, port = _address(url)
    data = json.dumps(body).encode()
    protocol = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    protocol.initiate_connection()
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":authority": f"{host}:{port}",
        ":path": PATH,
        "content-type": "application/json",
        "content-length": str(len(data)),
    }
    protocol.send_headers(1, list(headers.items()))
    protocol.send_data(1, data, end_stream=True)
    with socket.create_connection((host, port), timeout=10) as connection:
        connection.sendall(protocol.data_to_send())

        def reset() -> None:
            protocol.reset_stream(1, h2.errors.ErrorCodes.CANCEL)
            connection.sendall(protocol.data_to_send())
            time.sleep(0.1)  # still connected: only the stream is gone

        yield reset


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 80)

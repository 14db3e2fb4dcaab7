"""An engine's place taken by a recorder: it keeps each request as it came and answers 200.

What reaches an engine byte for byte can only be seen by one that keeps it; this one is registered
in Consul like any engine, so that both Envoys and the control plane on the way are real.
"""

import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from types import TracebackType
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A POST as it reached the engine; header names are in lower case."""

    headers: dict[str, str]
    body: bytes


class Recorder(ThreadingMixIn, UnixStreamServer):
    """Serves HTTP/1.1 on a Unix socket between enter and exit."""

    daemon_threads = True
    block_on_close = False  # Envoy keeps its connections open

    def __init__(self, socket: Path) -> None:
        self.received: list[Recorded] = []
        super().__init__(str(socket), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", "0")))
        recorder = self.server
        assert isinstance(recorder, Recorder)
        recorder.received.append(Recorded(headers=headers, body=body))
        self._answer({"usage": {"completion_tokens": 1}})

    def _answer(self, value: object) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Stay silent: the default writes the peer's address, which a Unix socket has not."""

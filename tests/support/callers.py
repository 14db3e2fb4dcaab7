"""Real callers: programs and libraries that people use, each behind the same small interface.

A caller sends exactly the bytes it is given wherever it can (the OpenAI SDK writes its own body).
Arrival times count from the sending of the request, and not from the start of a program or a JVM.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CHAT = "/v1/chat/completions"
DONE = "[DONE]"
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What a caller saw: `text` is the body as it came, `events` are those of a stream."""

    status: int
    text: str
    http_version: str  # "HTTP/1.1" or "HTTP/2"
    events: tuple[tuple[float, str], ...] = ()  # seconds from the sending, and data
    headers: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> Any:
        return json.loads(self.text)


class Caller(ABC):
    """One way to call the mesh."""

    hides_done = False  # whether it swallows the [DONE] that ends a stream

    @abstractmethod
    def unary(self, base_url: str, model: str, prompt: str, *, max_tokens: int = 4) -> CallResult:
        """Send one chat request; return its answer."""

    @abstractmethod
    def stream(self, base_url: str, model: str, prompt: str, *, max_tokens: int = 4) -> CallResult:
        """Send one streamed chat request; return its events with the times they arrived."""


class ByteCaller(Caller):
    """A caller that sends a body of ours as it is."""

    @abstractmethod
    def send(self, base_url: str, body: bytes, *, stream: bool) -> CallResult:
        """Send one chat request with this body; read its answer line by line if `stream`."""

    def unary(self, base_url: str, model: str, prompt: str, *, max_tokens: int = 4) -> CallResult:
        body = chat_bytes(model, prompt, max_tokens=max_tokens, stream=False)
        return self.send(base_url, body, stream=False)

    def stream(self, base_url: str, model: str, prompt: str, *, max_tokens: int = 4) -> CallResult:
        body = chat_bytes(model, prompt, max_tokens=max_tokens, stream=True)
        return self.send(base_url, body, stream=True)


def chat_bytes(model: str, prompt: str, *, max_tokens: int, stream: bool) -> bytes:
    """Return the body of a chat request; letters beyond ASCII stay as they are, in UTF-8."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "stream": stream,
    }
    return json.dumps(body, ensure_ascii=False).encode()


def event_data(line: str) -> str | None:
    """Return what a line of an event stream carries; None when it carries no data."""
    return line.removeprefix("data: ").rstrip("\r\n") if line.startswith("data: ") else None

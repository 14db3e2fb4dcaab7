"""Callers in Python: httpx over HTTP/2 with prior knowledge, and the OpenAI SDK."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai

from tests.support.callers import CHAT, TIMEOUT_S, ByteCaller, Caller, CallResult, event_data


class Httpx(ByteCaller):
    """httpx that speaks HTTP/2 from the first byte, also without TLS."""

    def send(self, base_url: str, body: bytes, *, stream: bool) -> CallResult:
        headers = {"content-type": "application/json"}
        events: list[tuple[float, str]] = []
        lines: list[str] = []
        with httpx.Client(http1=False, http2=True, timeout=TIMEOUT_S, trust_env=False) as client:
            started = time.monotonic()
            call = client.stream("POST", f"{base_url}{CHAT}", content=body, headers=headers)
            with call as response:
                for line in response.iter_lines():
                    lines.append(line)
                    data = event_data(line) if stream else None
                    if data is not None:
                        events.append((time.monotonic() - started, data))
        return CallResult(
            status=response.status_code,
            text="\n".join(lines),
            http_version=response.http_version,
            events=tuple(events),
            headers=dict(response.headers),
        )


class OpenAiSdk(Caller):
    """The OpenAI SDK as its README shows it; errors are raised as the SDK raises them."""

    hides_done = True

    def unary(self, base_url: str, model: str, prompt: str, *, max_tokens: int = 4) -> CallResult:
        with openai_client(base_url) as client:
            answer = client.chat.completions.with_raw_response.create(
                model=model, messages=_messages(prompt), max_tokens=max_tokens
            )
        return CallResult(
            status=answer.http_response.status_code,
            text=answer.text,
            http_version=answer.http_response.http_version,
            headers=dict(answer.headers),
        )

    def stream(self, base_url: str, model: str, prompt: str, *, max_tokens: int = 4) -> CallResult:
        events: list[tuple[float, str]] = []
        with openai_client(base_url) as client:
            started = time.monotonic()
            with client.chat.completions.create(
                model=model, messages=_messages(prompt), max_tokens=max_tokens, stream=True
            ) as chunks:
                for chunk in chunks:
                    events.append((time.monotonic() - started, chunk.model_dump_json()))
            response = chunks.response
        return CallResult(
            status=response.status_code,
            text="",  # the SDK hands out its parsed events only
            http_version=response.http_version,
            events=tuple(events),
            headers=dict(response.headers),
        )


@contextmanager
def openai_client(base_url: str) -> Iterator[openai.OpenAI]:
    """Yield the SDK's client with no retries, so that a test sees the first answer."""
    with openai.OpenAI(
        base_url=f"{base_url}/v1",
        api_key="none",
        max_retries=0,
        timeout=TIMEOUT_S,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    ) as client:
        yield client


def _messages(prompt: str) -> Any:
    return [{"role": "user", "content": prompt}]

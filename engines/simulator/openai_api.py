"""Requests and answers in the shapes of OpenAI's API as vLLM serves them. Pure.

Requests are untrusted: every field read is checked, and an error never repeats a prompt.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from control_plane.errors import WattmeshError
from engines.simulator.service_model import count_tokens

DEFAULT_MAX_TOKENS = 16
_CREATED = 0  # answers are the same every time


class ApiError(WattmeshError):
    """A request that is answered with an error, in the form that vLLM gives it."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        self.status = status
        self.message = message
        self.param = param
        super().__init__(message)

    def body(self) -> dict[str, object]:
        """Return the JSON answer."""
        kind = "NotFoundError" if self.status == 404 else "BadRequestError"
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.status,
            }
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What a request asks for."""

    chat: bool
    prompt_tokens: int
    max_tokens: int
    stream: bool
    seed: int


def parse_generation(
    body: bytes, *, chat: bool, model: str, max_model_len: int, seed: int
) -> Generation:
    """Return what a body asks for. Raise ApiError when it cannot be served."""
    request = _object(body)
    _check_model(request, model)
    prompt = _chat_text(request) if chat else _prompt_text(request)
    prompt_tokens = count_tokens(prompt)
    max_tokens = _max_tokens(request, prompt_tokens, max_model_len)
    return Generation(
        chat=chat,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        stream=_stream(request),
        seed=seed,
    )


def _object(body: bytes) -> Mapping[str, object]:
    if not body:
        raise ApiError(400, "The request has no body.")
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "The body is not valid JSON.") from error
    if not isinstance(request, dict):
        raise ApiError(400, "The body is not a JSON object.")
    return request


def _chat_text(request: Mapping[str, object]) -> str:
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list that is not empty.", "messages")
    texts: list[str] = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ApiError(400, "Every message must be an object with a role.", "messages")
        content = message.get("content")
        texts.append(content if isinstance(content, str) else json.dumps(content))
    return "\n".join(texts)


def _prompt_text(request: Mapping[str, object]) -> str:
    prompt = request.get("prompt")
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt:
        return json.dumps(prompt)
    raise ApiError(400, "prompt must be a text or a list that is not empty.", "prompt")


def _check_model(request: Mapping[str, object], served: str) -> None:
    """Raise ApiError for another model's name; like vLLM, no name means the one served."""
    model = request.get("model")
    if not isinstance(model, str | None):
        raise ApiError(400, "model must be a text.", "model")
    if model and model != served:
        raise ApiError(404, "The model of the request does not exist.", "model")


def _stream(request: Mapping[str, object]) -> bool:
    """Return whether the answer is streamed. Usage is always told, so no stream option counts."""
    stream = request.get("stream", False)
    if not isinstance(stream, bool | None):
        raise ApiError(400, "stream must be true or false.", "stream")
    options = request.get("stream_options")
    if not isinstance(options, dict | None):
        raise ApiError(400, "stream_options must be an object.", "stream_options")
    if options and not stream:
        raise ApiError(
            400, "Stream options can only be defined when `stream=True`.", "stream_options"
        )
    return bool(stream)


def _max_tokens(request: Mapping[str, object], prompt_tokens: int, max_model_len: int) -> int:
    """Return how many tokens to make; the default shrinks to what the prompt leaves."""
    left = max_model_len - prompt_tokens
    if left < 1:
        raise ApiError(
            400,
            f"This model's maximum context length is {max_model_len} tokens; "
            f"the prompt has {prompt_tokens}.",
            "input_tokens",
        )
    asked = _asked_tokens(request)
    if asked is None:
        return min(DEFAULT_MAX_TOKENS, left)
    if asked > left:
        raise ApiError(
            400,
            f"This model's maximum context length is {max_model_len} tokens; "
            f"the prompt has {prompt_tokens} and {asked} were asked for.",
            "max_tokens",
        )
    return asked


def _asked_tokens(request: Mapping[str, object]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        value = request.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ApiError(400, f"{name} must be a whole number of at least 1.", name)
        return value
    return None


def answer(generation: Generation, *, model: str, request_id: str, text: str) -> dict[str, object]:
    """Return the answer of a request that is not streamed."""
    choice: dict[str, object] = {"index": 0, "finish_reason": "length", "logprobs": None}
    if generation.chat:
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    return {
        **_head(generation, model, request_id, streamed=False),
        "choices": [choice],
        "usage": usage(generation, generation.max_tokens),
    }


def chunk(
    generation: Generation, *, model: str, request_id: str, text: str, made: int
) -> dict[str, object]:
    """Return one event of a stream: the text of the token just made, and usage so far."""
    last = made == generation.max_tokens
    choice: dict[str, object] = {"index": 0, "finish_reason": "length" if last else None}
    if generation.chat:
        delta: dict[str, object] = {"content": text}
        choice["delta"] = {"role": "assistant", **delta} if made == 1 else delta
    else:
        choice["text"] = text
    return {
        **_head(generation, model, request_id, streamed=True),
        "choices": [choice],
        "usage": usage(generation, made),
    }


def last_chunk(generation: Generation, *, model: str, request_id: str) -> dict[str, object]:
    """Return the event that closes a stream with its usage and no choice."""
    return {
        **_head(generation, model, request_id, streamed=True),
        "choices": [],
        "usage": usage(generation, generation.max_tokens),
    }


def usage(generation: Generation, made: int) -> dict[str, int]:
    """Return the token counts after `made` tokens."""
    return {
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": made,
        "total_tokens": generation.prompt_tokens + made,
    }


def model_card(model: str, max_model_len: int) -> dict[str, object]:
    """Return the entry of a model in /v1/models."""
    return {
        "id": model,
        "object": "model",
        "created": _CREATED,
        "owned_by": "wattmesh-simulator",
        "max_model_len": max_model_len,
    }


def _head(
    generation: Generation, model: str, request_id: str, *, streamed: bool
) -> dict[str, object]:
    kind = "text_completion"
    if generation.chat:
        kind = "chat.completion.chunk" if streamed else "chat.completion"
    return {"id": request_id, "object": kind, "created": _CREATED, "model": model}

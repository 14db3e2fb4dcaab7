"""Every answer that Envoy itself gives, in the shape of OpenAI's errors.

`code` is for programs, `message` for people. 503 means that we are out of capacity or down, and
says when to come back.
"""

import json

from control_plane.resources.messages import Json

NO_ENGINE = "no_engine_available"
OVERLOADED = "overloaded"
RATE_LIMITED = "rate_limit_exceeded"
NO_ENGINE_HEADER = "x-wattmesh-no-engine"  # of a node's answers to edges; callers never see it


def error_body(message: str, *, kind: str, code: str, param: str | None = None) -> str:
    """Return the JSON text of one error."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error}, separators=(",", ":"))


def direct_error(
    status: int, message: str, *, code: str, param: str | None = None, headers: Json | None = None
) -> Json:
    """Return the action part of a route that answers with an error itself."""
    body = error_body(message, kind="invalid_request_error", code=code, param=param)
    return direct_json(status, body, headers)


def direct_json(status: int, body: str, headers: Json | None = None) -> Json:
    """Return the action part of a route that answers with JSON itself."""
    wanted = {"content-type": "application/json", **(headers or {})}
    return {
        "direct_response": {"status": status, "body": {"inline_string": body}},
        "response_headers_to_add": [set_header(name, value) for name, value in wanted.items()],
    }


def set_header(name: str, value: str) -> Json:
    """Return a HeaderValueOption that replaces what stands there."""
    return {
        "header": {"key": name, "value": value},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }


def local_reply_config(*, max_request_bytes: int, retry_after_s: int, no_engine: Json) -> Json:
    """Return the LocalReplyConfig that gives Envoy's own replies this shape.

    `no_engine` are further headers of the reply that says that no engine of the pool lives.
    The routes' direct responses carry their body already and match none of the mappers, but for
    the 503 of a node without the pool, which has no body of its own.
    """
    retry = {"retry-after": str(retry_after_s)}
    limit = f"the limit is {max_request_bytes} bytes"
    return {
        "mappers": [
            _mapper(
                _flags("UH"),
                NO_ENGINE,
                "No engine of this model is available now.",
                {**retry, **no_engine},
            ),
            _mapper(_flags("UO"), OVERLOADED, "All engines of this model are busy.", retry),
            _mapper(_status(503), "unavailable", "The engine could not be reached.", retry),
            _mapper(_status(502), "bad_gateway", "The engine broke off its answer.", retry),
            _mapper(_status(504), "timeout", "The engine did not answer in time.", retry),
            _mapper(
                _status(429), RATE_LIMITED, "Too many requests; the limit is in x-ratelimit-*."
            ),
            _mapper(_status(408), "timeout", "The request did not arrive in time."),
            _mapper(_status(413), "request_too_large", f"The request is too large; {limit}."),
            _mapper(_status(431), "headers_too_large", "The request's headers are too large."),
        ]
    }


_SERVER_FAULTS = frozenset({NO_ENGINE, OVERLOADED, "unavailable", "bad_gateway", "timeout"})


def _mapper(access_filter: Json, code: str, message: str, headers: Json | None = None) -> Json:
    kind = "server_error" if code in _SERVER_FAULTS else "invalid_request_error"
    if code == RATE_LIMITED:
        kind = "requests"  # as OpenAI names it
    body = error_body(message, kind=kind, code=code)
    return {
        "filter": access_filter,
        "body_format_override": {
            "text_format_source": {"inline_string": body},
            "content_type": "application/json",
        },
        "headers_to_add": [set_header(name, value) for name, value in (headers or {}).items()],
    }


def _flags(*flags: str) -> Json:
    return {"response_flag_filter": {"flags": list(flags)}}


def _status(status: int) -> Json:
    value = {"default_value": status, "runtime_key": "wattmesh.local_reply"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}

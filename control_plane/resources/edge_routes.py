"""The edge's routes: who asks for which model, what is answered at once, what is refused.

Only OpenAI's inference paths reach an engine; an engine's own /metrics, /health or adapter
management never do. Matching is by whole names, so "acme/fox" never takes requests of
"acme/fox-7b".
"""

import json
import re
from urllib.parse import quote

from control_plane.plan import ModelPlan, Plan
from control_plane.resources.http import retry_policy
from control_plane.resources.messages import Json, seconds
from control_plane.resources.openai_errors import (
    NO_ENGINE_HEADER,
    direct_error,
    direct_json,
    set_header,
)
from control_plane.resources.request_limits import limited_route

METADATA_NAMESPACE = "wattmesh"
MODEL_HEADER = "x-wattmesh-model"
POOL_HEADER = "x-wattmesh-pool"  # tells the node which pool was chosen
VERSION_HEADER = "x-wattmesh-version"

# In two groups: Envoy refuses a regular expression whose program is larger than 100 steps.
_OPENAI_PATHS = (
    "chat/completions",
    "completions",
    "embeddings",
    "responses",
    "messages",
    "rerank",
    "score",
)
_VLLM_PATHS = (
    "v1/audio/transcriptions",
    "tokenize",
    "detokenize",
    "pooling",
    "classify",
    "rerank",
)
# Connect failures and answers that say "not me": a node that is full or whose engine just died.
_RETRY_ON = "gateway-error,connect-failure,refused-stream,reset-before-request"
_NOT_FOUND = "The model does not exist; GET /v1/models lists those that are served."


def edge_route_configuration(name: str, plan: Plan) -> Json:
    """Return the RouteConfiguration of all edges."""
    by_header = [
        _model_route(model, {"headers": [_header_is(MODEL_HEADER, model.model)]})
        for model in plan.models
    ]
    by_body = [
        _model_route(model, {"dynamic_metadata": [_body_model_is(model.model)]})
        for model in plan.models
    ]
    routes = [
        {"match": {"path": "/wattmesh/ready"}, **direct_json(200, '{"ready":true}')},
        *_model_list_routes(plan),
        _not_inference(),
        _method_not_allowed(),
        *by_header,
        _refusal({"headers": [{"name": MODEL_HEADER, "present_match": True}]}, 404, _NOT_FOUND),
        *by_body,
        _refusal(
            {"dynamic_metadata": [_body_model_is("__missing__")]},
            400,
            'The request names no model: give "model" in the JSON body.',
            code="missing_model",
        ),
        _refusal(
            {"dynamic_metadata": [_body_model_is("__error__")]},
            400,
            "The body is not JSON, or its content-type is not application/json.",
            code="invalid_json",
            param=None,
        ),
        _refusal({}, 404, _NOT_FOUND),
    ]
    return {
        "name": name,
        "virtual_hosts": [{"name": name, "domains": ["*"], "routes": routes}],
        "response_headers_to_remove": [NO_ENGINE_HEADER],
        # The list of models is one direct response; 1 MiB holds some ten thousand of them.
        "max_direct_response_body_size_bytes": 1024 * 1024,
    }


def _model_route(model: ModelPlan, match: Json) -> Json:
    return {
        "match": {"prefix": "/", **match},
        "metadata": limited_route(model.model),
        "route": {
            "weighted_clusters": {
                "clusters": [
                    {
                        "name": pool.cluster,
                        "weight": weight,
                        "request_headers_to_add": [set_header(POOL_HEADER, pool.cluster)],
                        "response_headers_to_add": [set_header(VERSION_HEADER, pool.version)]
                        if pool.version
                        else [],
                    }
                    for pool, weight in model.routes
                ]
            },
            # What callers send as Host may be no authority, and nobody behind the edge reads it.
            "host_rewrite_literal": "wattmesh",
            "timeout": "0s",  # a stream may last; what is bounded is its silence
            "idle_timeout": seconds(model.generation_timeout_s),
            "retry_policy": retry_policy(_RETRY_ON),
        },
    }


def _header_is(name: str, value: str) -> Json:
    return {"name": name, "string_match": {"exact": value}}


def _body_model_is(value: str) -> Json:
    return {
        "filter": METADATA_NAMESPACE,
        "path": [{"key": "model"}],
        "value": {"string_match": {"exact": value}},
    }


def _refusal(
    match: Json,
    status: int,
    message: str,
    *,
    code: str = "model_not_found",
    param: str | None = "model",
) -> Json:
    return {
        "match": {"prefix": "/", **match},
        **direct_error(status, message, code=code, param=param),
    }


def _not_inference() -> Json:
    """Refuse every path but the inference ones, once, so that no model's route repeats the test."""
    openai = f"/v1/({'|'.join(_OPENAI_PATHS)})"
    vllm = f"/({'|'.join(_VLLM_PATHS)})"
    headers = [
        {
            "name": ":path",
            "string_match": {"safe_regex": {"regex": rf"{pattern}(\?.*)?"}},
            "invert_match": True,
        }
        for pattern in (openai, vllm)
    ]
    nothing = direct_error(404, "There is no such path here.", code="not_found")
    return {"match": {"prefix": "/", "headers": headers}, **nothing}


def _method_not_allowed() -> Json:
    match = {
        "headers": [{"name": ":method", "string_match": {"exact": "POST"}, "invert_match": True}]
    }
    action = direct_error(405, "Use POST.", code="method_not_allowed", headers={"allow": "POST"})
    return {"match": {"prefix": "/", **match}, **action}


def _model_list_routes(plan: Plan) -> list[Json]:
    """Answer /v1/models with the live models, and every listed ID, plain or percent-encoded."""
    names = [model.model for model in plan.models if model.live]
    cards = {
        name: {"id": name, "object": "model", "created": 0, "owned_by": "wattmesh"}
        for name in names
    }
    listing = json.dumps({"object": "list", "data": list(cards.values())}, separators=(",", ":"))
    routes: list[Json] = [
        _only_read("/v1/models"),
        {"match": {"path": "/v1/models"}, **direct_json(200, listing)},
    ]
    for name, card in cards.items():
        body = json.dumps(card, separators=(",", ":"))
        routes += [{"match": {"path": path}, **direct_json(200, body)} for path in _spellings(name)]
    unknown = direct_error(404, _NOT_FOUND, code="model_not_found", param="model")
    routes.append({"match": {"prefix": "/v1/models/"}, **unknown})
    return routes


def _only_read(prefix: str) -> Json:
    match = {
        "name": ":method",
        "string_match": {"safe_regex": {"regex": "GET|HEAD"}},
        "invert_match": True,
    }
    action = direct_error(405, "Use GET.", code="method_not_allowed", headers={"allow": "GET"})
    return {"match": {"prefix": prefix, "headers": [match]}, **action}


def _spellings(name: str) -> list[str]:
    """Return the paths by which clients ask for a model: plain, or percent-encoded as they do."""
    plain = quote(name, safe="/:@!$&'()*+,;=~")
    encoded = quote(name, safe="")
    lower = re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), encoded)
    return [f"/v1/models/{text}" for text in sorted({plain, encoded, lower})]

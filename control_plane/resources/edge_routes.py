"""The edge's routes: who asks for which model, what is answered at once, what is refused.

Only OpenAI's inference paths reach an engine; an engine's own /metrics, /health or adapter
management never do. Matching is by whole names, so "acme/fox" never takes requests of
"acme/fox-7b".
"""

import json
import re

from control_plane.plan import ModelPlan, Plan
from control_plane.resources.http import retry_policy
from control_plane.resources.messages import Json, seconds
from control_plane.resources.openai_errors import direct_error, direct_json, set_header

METADATA_NAMESPACE = "wattmesh"
MODEL_HEADER = "x-wattmesh-model"
POOL_HEADER = "x-wattmesh-pool"  # tells the node which pool was chosen
VERSION_HEADER = "x-wattmesh-version"

_INFERENCE_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/rerank",
    "/v1/score",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/tokenize",
    "/detokenize",
    "/pooling",
    "/classify",
    "/score",
    "/rerank",
)
_INFERENCE: Json = {"safe_regex": {"regex": "|".join(re.escape(path) for path in _INFERENCE_PATHS)}}
# Connect failures and answers that say "not me": a node that is full or whose engine just died.
_RETRY_ON = "gateway-error,connect-failure,refused-stream,reset-before-request"
_NOT_FOUND = "The model does not exist; GET /v1/models lists those that are served."
_RESERVED_HEADERS = (
    "x-wattmesh-engine",
    "x-wattmesh-version",
    "x-wattmesh-degraded",
    "x-wattmesh-priority",
)


def edge_route_configuration(name: str, plan: Plan) -> Json:
    """Return the RouteConfiguration of all edges."""
    by_header = [
        _model_route(model, {"headers": [_header_is(MODEL_HEADER, public_name)]})
        for model in plan.models
        for public_name in (model.model, *model.aliases)
    ]
    by_body = [
        _model_route(model, {"dynamic_metadata": [_body_model_is(public_name)]})
        for model in plan.models
        for public_name in (model.model, *model.aliases)
    ]
    routes = [
        {"match": {"path": "/wattmesh/ready"}, **direct_json(200, '{"ready":true}')},
        *_model_list_routes(plan),
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
        {
            "match": {"prefix": "/"},
            **direct_error(404, "There is no such path here.", code="not_found"),
        },
    ]
    return {
        "name": name,
        "virtual_hosts": [{"name": name, "domains": ["*"], "routes": routes}],
        "request_headers_to_remove": list(_RESERVED_HEADERS),
        # The list of models is one direct response; 1 MiB holds some ten thousand of them.
        "max_direct_response_body_size_bytes": 1024 * 1024,
        # So that the pool chosen by a route is set after a caller's own header was removed.
        "most_specific_header_mutations_wins": True,
    }


def _model_route(model: ModelPlan, match: Json) -> Json:
    return {
        "match": {**_INFERENCE, **match},
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
        "match": {**_INFERENCE, **match},
        **direct_error(status, message, code=code, param=param),
    }


def _method_not_allowed() -> Json:
    match = {
        "headers": [{"name": ":method", "string_match": {"exact": "POST"}, "invert_match": True}]
    }
    action = direct_error(405, "Use POST.", code="method_not_allowed", headers={"allow": "POST"})
    return {"match": {**_INFERENCE, **match}, **action}


def _model_list_routes(plan: Plan) -> list[Json]:
    """Answer /v1/models with the live models, and every listed ID, plain or percent-encoded."""
    served = [model for model in plan.models if model.live]
    names = sorted(name for model in served for name in (model.model, *model.aliases))
    cards = {
        name: {"id": name, "object": "model", "created": 0, "owned_by": "wattmesh"}
        for name in names
    }
    listing = json.dumps({"object": "list", "data": list(cards.values())}, separators=(",", ":"))
    routes: list[Json] = [{"match": {"path": "/v1/models"}, **direct_json(200, listing)}]
    for name, card in cards.items():
        body = json.dumps(card, separators=(",", ":"))
        routes.append(
            {
                "match": {"safe_regex": {"regex": f"/v1/models/{_path_pattern(name)}"}},
                **direct_json(200, body),
            }
        )
    unknown = direct_error(404, _NOT_FOUND, code="model_not_found", param="model")
    routes.append({"match": {"prefix": "/v1/models/"}, **unknown})
    return routes


def _path_pattern(name: str) -> str:
    """Return a pattern of a name's spellings in a path: plain where a path allows it, or %XX."""
    return "".join(_byte_pattern(byte) for byte in name.encode())


def _byte_pattern(byte: int) -> str:
    encoded = f"(?i:%{byte:02x})"
    plain = re.escape(chr(byte)) if 0x20 < byte < 0x7F and chr(byte) not in "%?#" else ""
    return f"(?:{plain}|{encoded})" if plain else encoded

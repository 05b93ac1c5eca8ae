"""The OpenAPI document of a role's gateway, made from the tables that its app is made from.

``STANDARD`` has every role's operations; the app makes its routes from its keys, so none is served without
being described. A role's own are described by the role: :class:`~rolecall.api.Endpoint` has its operation,
``more_payloads`` what ``/generate`` takes beside the engines' payload.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

from rolecall.client.inference_client import CHAT_PATH, GENERATE_PATH
from rolecall.gateway.errors import is_openai_path
from rolecall.gateway.openapi_schemas import Schema, components, ref, request_of
from rolecall.interfaces.role import Endpoint, PayloadShape, Role
from rolecall.routing.resolver import AFFINITY_HEADER

CONTRACT_VERSION = "1"
"""Of the HTTP contract; raised by a change that callers have to know of."""

_JSON = "application/json"

_STATUSES: Mapping[int, str] = {
    400: "The request is wrong; the error names the field.",
    401: "A token is set, and not sent.",
    413: "The body is over `gateway.max_body_bytes`.",
    429: "The caller has `gateway.max_requests_per_caller` requests under way.",
    431: "Path and headers are over `gateway.max_head_bytes`.",
    500: "The gateway failed; its log has the reason.",
    502: "The engine could not be reached, or its answer is not what the protocol says; sent once.",
    503: "The model is not READY, has no replica, or the registry is away. Nothing was sent to an engine.",
    504: "`gateway.request_timeout_s` passed; the engine is told to abort.",
}

_HEADERS: Mapping[int, Mapping[str, Schema]] = {
    401: {"WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}}},
    429: {"Retry-After": {"required": True, "schema": {"type": "string", "pattern": "^[0-9]+$"}}},
    503: {"Retry-After": {"required": True, "schema": {"type": "string", "pattern": "^[0-9]+$"}}},
}

_OF_ALL = (401, 429, 431, 500)

_REQUEST_HEADERS: Sequence[Schema] = [
    {
        "name": AFFINITY_HEADER,
        "in": "header",
        "description": "Affinity key: requests with the same one go to the same replica.",
        "schema": {"type": "string", "pattern": r"[^\t ]"},
    },
    {
        "name": "X-Request-Id",
        "in": "header",
        "description": "Kept from end to end, if it is up to 128 printable ASCII characters without blanks.",
        "schema": {"type": "string"},
    },
]

_ANSWER_HEADERS: Mapping[str, Schema] = {
    "X-Request-Id": {"required": True, "schema": {"type": "string"}},
    "X-Rolecall-Engine": {
        "description": "The replica that answered; none behind a router.",
        "schema": {"type": "string"},
    },
}


def _generation(summary: str, body: Schema) -> Schema:
    return {
        "summary": summary,
        "parameters": _REQUEST_HEADERS,
        "requestBody": {"required": True, "content": {_JSON: {"schema": body}}},
        "responses": {
            "200": {
                "description": "The engine's answer; events, if the request has `stream: true`.",
                "headers": _ANSWER_HEADERS,
                "content": {_JSON: {"schema": {}}, "text/event-stream": {}},
            },
            **_errors(400, 413, 502, 503, 504),
            "default": {"description": "The engine's own HTTP error, status and body as they are."},
        },
    }


def _errors(*statuses: int) -> Schema:
    return {str(status): {"description": _STATUSES[status]} for status in statuses}


def _page(description: str, schema: str, *, media_type: str = _JSON, headers: Schema | None = None) -> Schema:
    shown = {} if headers is None else {"headers": headers}
    content = {media_type: {"schema": ref(schema) if schema else {"type": "string"}}}
    return {"description": description, **shown, "content": content}


_ETAG: Schema = {"ETag": {"required": True, "schema": {"type": "string", "pattern": '^"[^"]+:[0-9]+"$'}}}

_CHAT_OPERATION = _generation("Answer a chat.", ref("Chat"))

STANDARD: Mapping[tuple[str, str], Schema] = {
    ("POST", GENERATE_PATH): _generation("Generate with the engine's own payload.", ref("NativePayload")),
    ("POST", CHAT_PATH): _CHAT_OPERATION,
    ("POST", CHAT_PATH.removeprefix("/v1")): _CHAT_OPERATION,
    ("GET", "/v1/models"): {
        "summary": "The role's logical models.",
        "responses": {"200": _page("All of them.", "ModelList"), **_errors(503)},
    },
    ("GET", "/engines"): {
        "summary": "Discovery: where the role's requests may go now.",
        "parameters": [
            {"name": "schema", "in": "query", "schema": {"enum": ["2"]}},
            {
                "name": "wait_s",
                "in": "query",
                "description": "Wait so long for a change to what is known; a gateway has an upper limit.",
                "schema": {"type": "number", "minimum": 0},
            },
            {
                "name": "since",
                "in": "query",
                "description": "The `ETag` that is known, as `If-None-Match`.",
                "schema": {"type": "string"},
            },
            {"name": "If-None-Match", "in": "header", "schema": {"type": "string"}},
        ],
        "responses": {
            "200": _page("The snapshot.", "Snapshot", headers=_ETAG),
            "304": {"description": "It still is the known one.", "headers": _ETAG},
            **_errors(400, 503),
        },
    },
    ("GET", "/health"): {
        "summary": "Ready only if a request for every model would find an engine.",
        "responses": {
            "200": _page("Ready.", "Health"),
            "503": _page("Not ready.", "Health", headers=dict(_HEADERS[503])),
        },
    },
    ("GET", "/metrics"): {
        "summary": "Prometheus text.",
        "responses": {"200": _page("All counts.", "", media_type="text/plain")},
    },
}
"""Method and path of every role's operations, in the order of the document, with what is said of each."""


def openapi_document(role: str, plugin: Role) -> Schema:
    """Return the document of one role's gateway, as plain JSON values."""
    table: dict[tuple[str, str], Schema] = deepcopy(dict(STANDARD))
    shapes: Sequence[PayloadShape] = getattr(plugin, "more_payloads", ())
    for shape in shapes:
        _add_payload(table["POST", GENERATE_PATH], shape)
    for endpoint in plugin.endpoints():
        _add_endpoint(table, endpoint)
    paths: dict[str, Schema] = {}
    for (method, path), operation in table.items():
        shown = re.sub(r":\w+\}", "}", path)
        paths.setdefault(shown, {})[method.lower()] = _completed(operation, shown)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"The gateway of role {role}",
            "version": CONTRACT_VERSION,
            "description": "Errors on `/v1` and `/chat/completions` have OpenAI's shape.",
        },
        "servers": [{"url": f"/{role}"}],
        "security": [{}, {"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": components(),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _add_payload(operation: Schema, shape: PayloadShape) -> None:
    body = operation["requestBody"]["content"][_JSON]
    body["schema"] = _either(body["schema"], request_of(shape))
    answer = operation["responses"]["200"]["content"][_JSON]
    answer["schema"] = _either(answer["schema"], shape.answer)


def _add_endpoint(table: dict[tuple[str, str], Schema], endpoint: Endpoint) -> None:
    """Add what a role serves itself; what a query selects stands beside what is served without it."""
    key = (endpoint.method.upper(), endpoint.path)
    said = deepcopy(dict(endpoint.operation))
    said.setdefault("responses", {"default": {"description": "What the role answers."}})
    operation = table.setdefault(key, {"responses": {}})
    known = {parameter["name"]: parameter for parameter in operation.get("parameters", ())}
    for name, value in endpoint.query.items():
        parameter = known.setdefault(name, {"name": name, "in": "query", "schema": {"type": "string"}})
        if "enum" in parameter["schema"]:
            parameter["schema"]["enum"].append(value)
        summary = said.get("summary", "Answered by the role itself.")
        parameter["description"] = f"{parameter.get('description', '')} `{value}`: {summary}".strip()
    said["parameters"] = [*known.values(), *said.get("parameters", ())]
    if endpoint.query:
        said["summary"] = operation.get("summary", said.get("summary", ""))
    error = _error_content(endpoint.path)
    for status, response in said.pop("responses").items():
        _add_response(operation["responses"], status, response)
    for status, response in _errors(400, 503).items():
        _add_response(operation["responses"], status, {**response, "content": error})
    operation.update(said)


def _error_content(path: str) -> Schema:
    return {_JSON: {"schema": ref("OpenAIError" if is_openai_path(path) else "Error")}}


def _add_response(responses: Schema, status: str, response: Schema) -> None:
    known = responses.setdefault(status, response)
    for media_type, shown in response.get("content", {}).items():
        at = known.setdefault("content", {}).setdefault(media_type, shown)
        if at is not shown:
            at["schema"] = _either(at["schema"], shown["schema"])
    if known is not response and "headers" in known:
        # Only what all of its answers have is promised.
        headers = response.get("headers", {})
        known["headers"] = {
            name: {**header, "required": header.get("required", False) and name in headers}
            for name, header in known["headers"].items()
        }


def _either(first: Schema, second: Mapping[str, Any]) -> Schema:
    options = first.get("anyOf", [first])
    return first if second in options else {"anyOf": [*options, dict(second)]}


def _completed(operation: Schema, path: str) -> Schema:
    """Return an operation with the errors of all, the paths' parameters and the shape of errors."""
    responses = cast("dict[str, Schema]", {**operation["responses"]})
    for status, said in _errors(*_OF_ALL).items():
        responses.setdefault(status, said)
    for status, response in responses.items():
        if status.isdigit() and int(status) in _STATUSES:
            response.setdefault("content", _error_content(path))
            if int(status) in _HEADERS:
                response.setdefault("headers", _HEADERS[int(status)])
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]
    parameters = [*in_path, *operation.get("parameters", ())]
    shown = {"parameters": parameters} if parameters else {}
    ordered = dict(sorted(responses.items()))
    return {**{k: v for k, v in operation.items() if k != "parameters"}, **shown, "responses": ordered}

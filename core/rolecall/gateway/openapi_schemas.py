"""JSON schemas of what crosses a gateway: request bodies, errors, pages.

Snapshots are described from their own classes, error types from the table of errors; the rest says what the
checks say, and tests hold it against them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rolecall.discovery.snapshot import SCHEMA_VERSION, Snapshot
from rolecall.gateway.errors import ERROR_TYPES, OPENAI_ERROR_TYPES
from rolecall.interfaces.role import PayloadShape

Schema = dict[str, Any]

_TEMPLATE = "#/components/schemas/{name}"


def ref(name: str) -> Schema:
    """Return a reference to one of :func:`components`."""
    return {"$ref": _TEMPLATE.format(name=name)}


def _or_null(kind: str, **more: Any) -> Schema:
    return {"type": [kind, "null"], **more}


_IDS: Schema = _or_null("array", items={"type": "integer", "minimum": 0})

_SELECTORS: Mapping[str, Schema] = {"model": ref("ModelName"), "route_key": ref("RouteKey")}

_OF_ALL: Mapping[str, Schema] = {**_SELECTORS, "rid": ref("Rid"), "stream": {"type": "boolean"}}
"""What a gateway itself looks at in any request for generation."""

_NAMES_NO_HOST: Schema = {"^bootstrap_": False}

NATIVE_PROPERTIES: Mapping[str, Schema] = {
    "text": _or_null("string"),
    "input_ids": {**_IDS, "minItems": 1},
    "sampling_params": _or_null("object", properties={"n": {"enum": [None, 1]}}),
    "return_logprob": _or_null("boolean"),
    "logprob_start_len": _or_null("integer"),
    "top_logprobs_num": _or_null("integer", minimum=0),
    "token_ids_logprob": _IDS,
    "return_prompt_token_ids": _or_null("boolean"),
    "lora_path": _or_null("string"),
}
"""The checked fields of the engines' own payload; others pass as they are."""

_NATIVE: Schema = {
    "description": "The engine's own request, for one prompt. Fields that are not named here pass.",
    "type": "object",
    "properties": {**_OF_ALL, **NATIVE_PROPERTIES, "messages": False},
    "patternProperties": _NAMES_NO_HOST,
    "oneOf": [
        {"required": ["text"], "properties": {"text": {"type": "string"}}},
        {"required": ["input_ids"], "properties": {"input_ids": {"type": "array"}}},
    ],
}

_CHAT: Schema = {
    "description": "An OpenAI chat request. Fields that are not named here pass.",
    "type": "object",
    "properties": {**_OF_ALL, "messages": {"type": "array", "minItems": 1}},
    "patternProperties": _NAMES_NO_HOST,
    "required": ["messages"],
}

_HEALTH: Schema = {
    "type": "object",
    "properties": {
        "status": {"enum": ["ready", "not_ready"]},
        "models": {"type": "object", "additionalProperties": ref("ModelState")},
        "reason": {"type": "string"},
    },
    "required": ["status", "models"],
    "additionalProperties": False,
}

_MODEL: Schema = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": {"type": "string"},
    },
    "required": ["id", "object", "created", "owned_by"],
}

_MODEL_LIST: Schema = {
    "type": "object",
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": _MODEL}},
    "required": ["object", "data"],
}


def request_of(shape: PayloadShape) -> Schema:
    """Return the request that a role takes beside the native one, with the gateway's own fields."""
    request = dict(shape.request)
    return {**request, "properties": {**_SELECTORS, "rid": ref("Rid"), **request.get("properties", {})}}


def components() -> dict[str, Schema]:
    """Return the schemas that documents refer to by name."""
    return {
        "NativePayload": _NATIVE,
        "Chat": _CHAT,
        "ModelName": _selector("A model's id or alias."),
        "RouteKey": _selector("Chooses the model by the job file's `route_keys`, if no model is named."),
        "Rid": {
            "description": "The engine's id of the request. Engines abort by prefix.",
            "anyOf": [_ID, {"type": "array", "items": _ID, "minItems": 1}],
        },
        "Error": _error(
            {"type": {"enum": _with_internal(ERROR_TYPES.values())}, "field": {"type": "string"}}
        ),
        "OpenAIError": _error(
            {
                "type": {
                    "enum": sorted({*OPENAI_ERROR_TYPES.values(), "invalid_request_error", "server_error"})
                },
                "param": _or_null("string"),
                "code": {"enum": _with_internal(ERROR_TYPES.values())},
            },
            required=["type", "param", "code"],
        ),
        "Health": _HEALTH,
        "ModelList": _MODEL_LIST,
        **_snapshot(),
    }


_ID: Schema = {"type": "string", "pattern": r"[^\s\u001c-\u001f]"}
"""Not blank, as Python sees it: these separators are blanks to it, and to no regular expression."""


def _selector(description: str) -> Schema:
    return {"description": description, "type": ["string", "null"], "minLength": 1}


def _with_internal(types: Any) -> list[str]:
    return sorted({*types, "internal_error"})


def _error(properties: Mapping[str, Schema], required: Sequence[str] = ("type",)) -> Schema:
    return {
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {"message": {"type": "string"}, **properties},
                "required": ["message", *required],
                "additionalProperties": False,
            }
        },
        "required": ["error"],
        "additionalProperties": False,
    }


def _snapshot() -> dict[str, Schema]:
    """Return the schemas of discovery, which is strict: every field, and no other."""
    _, found = msgspec.json.schema_components((Snapshot,), ref_template=_TEMPLATE)
    found["Snapshot"]["properties"] = {
        "schema_version": {"const": SCHEMA_VERSION},
        **found["Snapshot"]["properties"],
    }
    for schema in found.values():
        if schema.get("type") == "object":
            schema["required"] = list(schema["properties"])
            schema["additionalProperties"] = False
    return found

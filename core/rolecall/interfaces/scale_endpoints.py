"""Endpoints that a role puts among its own, so that its models can be scaled over HTTP.

They are the role's choice: a role without them is scaled by the job's handle and the command line alone. What
they do is the gateway's (:mod:`rolecall.gateway.scaling`), the same for every role.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolecall.interfaces.role import Endpoint
from rolecall.scaling.request import BASE_URL, LONGEST_TIMEOUT_S, TIMEOUT_S, OnPartial
from rolecall.scaling.scale_state import ScaleState

Schema = dict[str, Any]

_NULL: Schema = {"type": "null"}
_TEXT: Schema = {"type": ["string", "null"], "minLength": 1}
_COMMON: Mapping[str, Schema] = {
    "model": {"description": "May be left out for a role with one model.", **_TEXT},
    "on_partial": {
        "description": "What becomes of replicas that came or went when others did not.",
        "enum": list(OnPartial),
        "default": OnPartial.KEEP,
    },
    "timeout_s": {
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": LONGEST_TIMEOUT_S,
        "default": TIMEOUT_S,
    },
    "dry_run": {"description": "Only say what would be done.", "type": "boolean", "default": False},
}

SCALE_OUT: Schema = {
    "type": "object",
    "properties": {
        "total": {
            "description": "All replicas that the model shall have.",
            "type": ["integer", "null"],
            "minimum": 1,
        },
        "urls": {
            "description": "Base URLs of engines that run already, to be added as replicas.",
            "type": ["array", "null"],
            "minItems": 1,
            "items": {"type": "string", "pattern": f"^{BASE_URL}$"},
        },
        "model_path": {"description": "Checkpoint that those engines have to name.", **_TEXT},
        **_COMMON,
    },
    "additionalProperties": False,
    "oneOf": [
        {
            "required": ["total"],
            "properties": {"total": {"type": "integer"}, "urls": _NULL, "model_path": _NULL},
        },
        {"required": ["urls"], "properties": {"urls": {"type": "array"}, "total": _NULL}},
    ],
}
SCALE_IN: Schema = {
    "type": "object",
    "properties": {
        "total": {"description": "Replicas that stay.", "type": "integer", "minimum": 1},
        "force": {
            "description": "End replicas also if their requests do not end by themselves soon.",
            "type": "boolean",
            "default": False,
        },
        **_COMMON,
    },
    "required": ["total"],
    "additionalProperties": False,
}

_REPLICA: Schema = {
    "type": "object",
    "properties": {
        "engine": {"type": "string"},
        "url": {"type": ["string", "null"]},
        "done": {"type": "boolean"},
        "undone": {"type": "boolean"},
        "detail": {"type": "string"},
    },
    "required": ["engine", "url", "done", "undone", "detail"],
}
OPERATION: Schema = {
    "type": "object",
    "properties": {
        "id": {"type": ["string", "null"]},
        "action": {"enum": ["scale_out", "scale_in"]},
        "role": {"type": "string"},
        "model": {"type": "string"},
        "state": {"enum": list(ScaleState)},
        "final": {"type": "boolean"},
        "reason": {"type": "string"},
        "before": {"type": "integer"},
        "wanted": {"type": "integer"},
        "reached": {"type": "integer"},
        "on_partial": {"enum": list(OnPartial)},
        "force": {"type": "boolean"},
        "replicas": {"type": "array", "items": _REPLICA},
        "left": {"type": "object", "additionalProperties": {"type": "string"}},
        "seconds": {"type": "number"},
    },
    "required": ["id", "action", "role", "model", "state", "final", "replicas", "left"],
}


def scale_endpoints() -> tuple[Endpoint, ...]:
    """Return ``/scale_out`` and ``/scale_in`` with their operations' status and cancel."""
    return tuple(
        endpoint
        for action, body in (("scale_out", SCALE_OUT), ("scale_in", SCALE_IN))
        for endpoint in _endpoints(action, body)
    )


def _endpoints(action: str, body: Schema) -> tuple[Endpoint, ...]:
    async def begin(request: Any, gateway: Any) -> Any:
        return await gateway.scaling.begin(request, action)

    async def listed(request: Any, gateway: Any) -> Any:
        return await gateway.scaling.listed(request, action)

    async def status(request: Any, gateway: Any) -> Any:
        return await gateway.scaling.status(request, action)

    async def cancel(request: Any, gateway: Any) -> Any:
        return await gateway.scaling.cancel(request, action)

    words = action.replace("_", " ")
    wait = {
        "name": "wait_s",
        "in": "query",
        "description": "Wait so long for its end.",
        "schema": {"type": "string", "pattern": r"^[0-9]{1,3}$"},
    }
    outside = {"501": {"description": "This gateway stands outside its job's Ray, and can't scale."}}
    unknown = {"404": {"description": "There is no such operation."}, **outside}
    return (
        Endpoint(
            method="POST",
            path=f"/{action}",
            handler=begin,
            operation={
                "summary": f"Begin to {words}; one operation of the role at a time.",
                "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
                "responses": {
                    "200": _answer("What a dry run would do.", OPERATION),
                    "202": _answer("The operation, begun.", OPERATION),
                    "409": {"description": "Another operation of the role is under way."},
                    "413": {"description": "The body is over `gateway.max_body_bytes`."},
                    **outside,
                },
            },
        ),
        Endpoint(
            method="GET",
            path=f"/{action}",
            handler=listed,
            operation={
                "summary": "The role's last operations of this kind.",
                "responses": {
                    "200": _answer(
                        "All that are remembered.",
                        {
                            "type": "object",
                            "properties": {"operations": {"type": "array", "items": OPERATION}},
                            "required": ["operations"],
                        },
                    ),
                    **outside,
                },
            },
        ),
        Endpoint(
            method="GET",
            path=f"/{action}/{{id}}",
            handler=status,
            operation={
                "summary": "How far an operation is.",
                "parameters": [wait],
                "responses": {"200": _answer("The operation.", OPERATION), **unknown},
            },
        ),
        Endpoint(
            method="POST",
            path=f"/{action}/{{id}}/cancel",
            handler=cancel,
            operation={
                "summary": "Give up what an operation waits for; repeats do nothing.",
                "responses": {"200": _answer("The operation.", OPERATION), **unknown},
            },
        ),
    )


def _answer(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}

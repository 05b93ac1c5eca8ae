"""Metadata without what is nobody's business: a chosen set of fields of each answer. Pure.

SGLang's ``/server_info`` is its whole command line, its schedulers' internals, addresses, ports and
process ids. What passes is what direct clients and routers read: the model's identity, its limits, the
shape of its parallelism. A field that a new version adds does not pass until it is named here.

The name is the one that the model is served under, whatever the engine says: SGLang renames itself to the
folder of its last weights from disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rolecall.client.codec import decode, encode

_MODEL = frozenset(
    {
        "architectures",
        "context_length",
        "has_audio_understanding",
        "has_image_understanding",
        "is_embedding",
        "is_generation",
        "max_model_len",
        "model_id",
        "model_path",
        "model_type",
        "served_model_name",
        "tokenizer_path",
        "vocab_size",
        "weight_version",
        "weight_versions",
    }
)
"""Who is served. The two paths name the model, as callers of other servers know them."""

_SERVER = _MODEL | {
    "disaggregation_mode",
    "dp_size",
    "engine",
    "load_balance_method",
    "max_batch_size",
    "max_num_reqs",
    "max_prefill_tokens",
    "max_req_input_len",
    "max_running_requests",
    "max_total_num_tokens",
    "max_total_tokens",
    "page_size",
    "pp_size",
    "queued_requests",
    "running_requests",
    "tp_size",
    "version",
}
"""And by what."""

_CARD = frozenset({"created", "id", "max_model_len", "object", "owned_by", "parent", "root"})


def _chosen(fields: frozenset[str], value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"an object was expected, found {type(value).__name__}")
    return {name: value[name] for name in value if name in fields}


def _info(fields: frozenset[str], value: object, name: str) -> dict[str, Any]:
    chosen = _chosen(fields, value)
    return chosen | {"served_model_name": name} if "served_model_name" in chosen else chosen


def _models(value: object, name: str) -> dict[str, Any]:
    listed = value.get("data") if isinstance(value, dict) else None
    if not isinstance(listed, list):
        raise ValueError("a list of models was expected")
    return {"object": "list", "data": [_named(_chosen(_CARD, card), name) for card in listed]}


def _named(card: dict[str, Any], name: str) -> dict[str, Any]:
    if card.get("parent") is not None:  # an adapter, which has its own name
        return card | {"parent": name}
    lasting = {key: name for key in ("id", "root") if key in card and card[key] == card.get("id")}
    return card | lasting


_FILTERS: Mapping[str, Callable[[object, str], dict[str, Any]]] = {
    "/v1/models": _models,
    "/server_info": partial(_info, _SERVER),
    "/get_server_info": partial(_info, _SERVER),
    "/model_info": partial(_info, _MODEL),
    "/get_model_info": partial(_info, _MODEL),
}


def filtered(path: str, body: bytes, served_model_name: str) -> bytes:
    """Return an engine's answer to a metadata path with the chosen fields only, under its lasting name.

    Raises:
        ValueError: it is not the JSON that the path answers.
    """
    return encode(_FILTERS[path](decode(body), served_model_name))

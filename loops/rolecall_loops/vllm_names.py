"""Sampling parameters as vLLM calls them, put as rolecall's engines call them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rolecall.api import PayloadError

_NATIVE = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos",
    "skip_special_tokens": "skip_special_tokens",
}
_OFF: Mapping[str, tuple[float, ...]] = {
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "repetition_penalty": (1.0,),
}
"""Parameter → values that ask for nothing. They are left out: engines write some of them otherwise."""


def native_sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters by their native names; those that are None, or ask for nothing, are left out.

    Raises:
        PayloadError: one of them has no counterpart.
    """
    sampling: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or value in _OFF.get(name, ()):
            continue
        if name == "structured_outputs":
            sampling["regex"] = _regex(value)
        elif name in _NATIVE:
            sampling[_NATIVE[name]] = value
        else:
            raise PayloadError(
                f"{name}: is not passed on to engines. "
                f"Passed on: {', '.join(_NATIVE)}, structured_outputs.regex",
                field=name,
            )
    return sampling


def _regex(value: Any) -> str:
    wanted = cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
    if set(wanted) != {"regex"} or not isinstance(wanted["regex"], str):
        raise PayloadError(
            f"structured_outputs: must be an object with a regex alone, found {value!r:.80}",
            field="structured_outputs",
        )
    return wanted["regex"]

"""SGLang's sampling parameters, and what they are in llama.cpp's words.

What llama.cpp can't give the same meaning is refused, unless its value changes nothing: an answer that
quietly ignores a parameter is worse than a 400.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from .fields import InvalidField, as_bool, as_ids, as_int, as_number, as_object, as_texts, check_neutral

_DEFAULT_NEW_TOKENS = 128
_SEEDS = 2**32 - 1
"""llama.cpp's seeds have 32 bits, and the highest of them means to draw one."""

_NEUTRAL: Mapping[str, Any] = {
    "n": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "min_new_tokens": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "no_stop_trim": False,
    "stop_regex": None,
    "json_schema": None,
    "regex": None,
    "ebnf": None,
    "structural_tag": None,
    "logit_bias": None,
    "custom_params": None,
}
"""Parameters that are not offered, and the value of each that changes nothing, besides null."""

_SAMPLERS = ["temperature", "top_k", "top_p", "min_p"]
"""In SGLang's order: temperature, then the cuts."""


@frozen(kw_only=True)
class Sampling:
    """How to choose tokens and when to stop.

    temperature: 0 is greedy. top_k: 0 is no limit. seed: None draws one.
    stop_token_ids: besides the model's own end tokens, which are never chosen with ``ignore_eos``.
    """

    max_new_tokens: int = _DEFAULT_NEW_TOKENS
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    seed: int | None = None

    @classmethod
    def parse(cls, value: Any) -> Sampling:
        """Read ``sampling_params``; absent and null are the defaults.

        Raises:
            InvalidField: a name is unknown or not offered, or a value has the wrong type or range.
        """
        given: dict[str, Any] = {}
        for name, entry in as_object(value or {}, "sampling_params").items():
            field = f"sampling_params.{name}"
            if name in _NEUTRAL:
                check_neutral(field, entry, _NEUTRAL[name])
            elif name not in _READERS:
                raise InvalidField(field, f"is unknown; known are {', '.join(sorted(_READERS))}")
            elif entry is not None:
                attribute, read = _READERS[name]
                given[attribute] = read(entry, field)
        return cls(**given)

    def to_llama(self) -> dict[str, Any]:
        """Return llama.cpp's parameters for ``/completion``."""
        parameters: dict[str, Any] = {
            "n_predict": self.max_new_tokens,
            "stop": list(self.stop),
            "ignore_eos": self.ignore_eos,
        }
        if self.seed is not None:
            parameters["seed"] = self.seed
        if self.temperature == 0:
            return {**parameters, "temperature": 0.0, "top_k": 1, "samplers": ["top_k"]}
        return {
            **parameters,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "samplers": _SAMPLERS,
        }


def _new_tokens(value: Any, field: str) -> int:
    return as_int(value, field, 0)


def _top_p(value: Any, field: str) -> float:
    top_p = as_number(value, field, 1)
    if top_p == 0:
        raise InvalidField(field, "must be above 0")
    return top_p


def _top_k(value: Any, field: str) -> int:
    return max(as_int(value, field, -1), 0)


def _min_p(value: Any, field: str) -> float:
    return as_number(value, field, 1)


def _stop(value: Any, field: str) -> tuple[str, ...]:
    return tuple(text for text in as_texts(value, field) if text)


def _stop_token_ids(value: Any, field: str) -> frozenset[int]:
    return frozenset(as_ids(value, field))


def _seed(value: Any, field: str) -> int:
    return as_int(value, field, 0) % _SEEDS


_READERS: Mapping[str, tuple[str, Any]] = {
    "max_new_tokens": ("max_new_tokens", _new_tokens),
    "temperature": ("temperature", as_number),
    "top_p": ("top_p", _top_p),
    "top_k": ("top_k", _top_k),
    "min_p": ("min_p", _min_p),
    "stop": ("stop", _stop),
    "stop_token_ids": ("stop_token_ids", _stop_token_ids),
    "ignore_eos": ("ignore_eos", as_bool),
    "sampling_seed": ("seed", _seed),
    "seed": ("seed", _seed),
}
"""Request name → attribute and reader. ``seed`` is a short name for SGLang's ``sampling_seed``."""

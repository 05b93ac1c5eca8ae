"""SGLang's ``sampling_params``, checked, and what they are in llama.cpp's words.

Parameters of SGLang that llama.cpp can't give the same meaning (penalties that look at the answer
only, grammars over a vocabulary it does not see) are refused unless they are neutral: an answer
that quietly ignores a parameter is worse than a 400.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from .fields import InvalidField, as_bool, as_int, as_int_list, as_number, as_text_list, nearest

_DEFAULT_NEW_TOKENS = 128
_MAX_SEED = 2**32 - 1

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_new_tokens": (0,),
    "stop_regex": (),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "structural_tag": (),
    "logit_bias": (),
    "custom_params": (),
    "spaces_between_special_tokens": (True,),
}
"""Known to SGLang, not offered here: accepted as null or with one of these values."""


@frozen(kw_only=True)
class SamplingParams:
    """How to choose tokens and when to stop.

    temperature: 0 is greedy. top_k: -1 or 0 is no limit.
    seed: None draws one. stop_token_ids: besides the model's own end tokens, which count unless
    ``ignore_eos``.
    """

    max_new_tokens: int = _DEFAULT_NEW_TOKENS
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False
    seed: int | None = None

    def llama_parameters(self) -> dict[str, Any]:
        """The samplers, in SGLang's order: temperature, then the cuts."""
        if self.temperature == 0:
            return {"temperature": 0.0, "top_k": 1, "samplers": ["top_k"]}
        return {
            "temperature": self.temperature,
            "top_k": max(self.top_k, 0),
            "top_p": self.top_p,
            "min_p": self.min_p,
            "samplers": ["temperature", "top_k", "top_p", "min_p"],
        }


def parse_sampling_params(value: Any, where: str = "sampling_params") -> SamplingParams:
    """Read ``sampling_params``; absent and null are the defaults.

    Raises:
        InvalidField: a name is unknown, or a value has the wrong type or range.
    """
    if value is None:
        return SamplingParams()
    if not isinstance(value, Mapping):
        raise InvalidField(where, f"is {type(value).__name__}, an object is expected")
    given: dict[str, Any] = {}
    for name, entry in value.items():
        field = f"{where}.{name}"
        if name in _NEUTRAL:
            if entry is not None and entry not in _NEUTRAL[name]:
                raise InvalidField(field, "is not offered by the embedded engine; leave it out")
        elif name not in _READERS:
            raise InvalidField(field, f"is not a sampling parameter{nearest(name, (*_READERS, *_NEUTRAL))}")
        elif entry is not None:
            attribute, read = _READERS[name]
            given[attribute] = read(entry, field)
    return SamplingParams(**given)


def _new_tokens(value: Any, field: str) -> int:
    return as_int(value, field, low=0)


def _temperature(value: Any, field: str) -> float:
    return as_number(value, field, low=0)


def _top_p(value: Any, field: str) -> float:
    top_p = as_number(value, field, low=0, high=1)
    if top_p == 0:
        raise InvalidField(field, "is 0; a number above 0 and at most 1 is expected")
    return top_p


def _top_k(value: Any, field: str) -> int:
    return as_int(value, field, low=-1)


def _min_p(value: Any, field: str) -> float:
    return as_number(value, field, low=0, high=1)


def _stop(value: Any, field: str) -> tuple[str, ...]:
    stops = as_text_list([value] if isinstance(value, str) else value, field)
    return tuple(stop for stop in stops if stop)


def _stop_token_ids(value: Any, field: str) -> frozenset[int]:
    return frozenset(as_int_list(value, field))


def _seed(value: Any, field: str) -> int:
    return as_int(value, field, low=0, high=_MAX_SEED)


_READERS: Mapping[str, tuple[str, Any]] = {
    "max_new_tokens": ("max_new_tokens", _new_tokens),
    "temperature": ("temperature", _temperature),
    "top_p": ("top_p", _top_p),
    "top_k": ("top_k", _top_k),
    "min_p": ("min_p", _min_p),
    "stop": ("stop", _stop),
    "stop_token_ids": ("stop_token_ids", _stop_token_ids),
    "ignore_eos": ("ignore_eos", as_bool),
    "skip_special_tokens": ("skip_special_tokens", as_bool),
    "no_stop_trim": ("no_stop_trim", as_bool),
    "sampling_seed": ("seed", _seed),
    "seed": ("seed", _seed),
}
"""Request name → attribute and reader. ``seed`` is a short name for SGLang's ``sampling_seed``."""

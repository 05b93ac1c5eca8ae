"""Checks of the native ``/generate`` payload that every role shares.

The engines' native protocol is SGLang's. Checked is what routing, deadlines and aborts of one
request rely on, and the types of the fields the roles themselves use; other fields are the
engine's affair and pass through unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from rolecall.errors import PayloadError
from rolecall.interfaces.token_ids import TokenIds


def check_native_payload(payload: Mapping[str, Any]) -> None:
    """Refuse what no engine should see.

    Exactly one of ``text`` and ``input_ids``, one prompt a request. ``messages`` is refused: a
    role with a judge protocol takes it out of the way before.

    Raises:
        PayloadError: names the field that is wrong.
    """
    if "messages" in payload:
        raise PayloadError(
            "messages: this role has no judge protocol; send text or input_ids, or use /v1/chat/completions",
            field="messages",
        )
    given = [name for name in ("text", "input_ids") if payload.get(name) is not None]
    if len(given) == 2:
        raise PayloadError(
            "input_ids: text and input_ids were both given; send one of them", field="input_ids"
        )
    if not given:
        raise PayloadError("text: neither text nor input_ids was given", field="text")
    for name, value in payload.items():
        known = _TYPES.get(name)
        if known is None or value is None:
            continue
        accepts, expected = known
        if not accepts(value):
            raise PayloadError(f"{name}: must be {expected}, found {_shown(value)}", field=name)
    sampling = cast("Mapping[str, Any]", payload.get("sampling_params") or {})
    number = sampling.get("n")
    if number is not None and (number is True or number != 1):
        raise PayloadError(
            f"sampling_params.n: must be 1, found {_shown(number)}; send one request a sample",
            field="sampling_params.n",
        )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return _is_integer(value) and cast(int, value) >= 0


def _is_object(value: object) -> bool:
    return isinstance(value, (dict, Mapping))  # dict first: asking an abstract class takes longer


def _is_ids(value: object) -> bool:
    # This is asked of every request, so it loops over the tokens in C. The type is compared and not
    # isinstance: a bool is no token id.
    if isinstance(value, TokenIds):
        return True
    if not isinstance(value, list):
        return False
    ids = cast("list[int]", value)
    return set(map(type, ids)) <= _INT and min(ids, default=0) >= 0


_INT = frozenset({int})


def _is_some_ids(value: object) -> bool:
    return _is_ids(value) and bool(value)


_TYPES: dict[str, tuple[Callable[[object], bool], str]] = {
    "text": (_is_text, "text; one prompt a request"),
    "input_ids": (_is_some_ids, "a list of token ids, not empty; one prompt a request"),
    "sampling_params": (_is_object, "an object"),
    "stream": (_is_flag, "true or false"),
    "return_logprob": (_is_flag, "true or false"),
    "logprob_start_len": (_is_integer, "an integer"),
    "top_logprobs_num": (_is_count, "an integer from 0"),
    "token_ids_logprob": (_is_ids, "a list of token ids"),
    "return_prompt_token_ids": (_is_flag, "true or false"),
    "lora_path": (_is_text, "text"),
}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

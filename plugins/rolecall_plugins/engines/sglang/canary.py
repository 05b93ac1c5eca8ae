"""The canary of a SGLang engine: a fixed prompt whose log-probabilities tell its weights apart. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rolecall.api import EngineError, EngineLaunch

TIMEOUT_S = 120.0

_PROMPT = (11, 83, 29, 101, 47, 5, 97, 61, 19, 73)
"""Ids that any vocabulary has; what they mean does not matter."""
_NEW_TOKENS = 2
"""The second one comes from a decode step, so caches and CUDA graphs are used once, too."""
_NOBODY = "2.2.2.2"
"""Bootstrap host by which SGLang knows a request that has no other half (its own warm-up's)."""


def request(launch: EngineLaunch) -> Mapping[str, Any]:
    """Return the payload for ``/generate``."""
    payload: dict[str, Any] = {
        "input_ids": list(_PROMPT),
        "sampling_params": {"temperature": 0, "max_new_tokens": _NEW_TOKENS, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    if launch.disaggregation is not None:
        payload |= {"bootstrap_host": _NOBODY, "bootstrap_room": 0}
    return payload


def log_probs(answer: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the prompt's log-probabilities; the first token has none.

    The new tokens' are not among them: where two tokens are almost equally likely, which one is taken,
    and all that follows, may differ from run to run.

    Raises:
        EngineError: the answer has not what was asked for.
    """
    meta: Mapping[str, Any] = answer["meta_info"]
    prompt, new = meta.get("input_token_logprobs") or [], meta.get("output_token_logprobs") or []
    values = tuple(float(entry[0]) for entry in prompt[1:] if entry[0] is not None)
    generated = [entry[0] for entry in new if entry[0] is not None and math.isfinite(entry[0])]
    if len(values) != len(_PROMPT) - 1 or not generated:
        raise EngineError(
            f"the canary gave {len(values)} log-probabilities of {len(_PROMPT) - 1} and {len(generated)} new "
            f"tokens; it ended with {meta.get('finish_reason')}"
        )
    return values

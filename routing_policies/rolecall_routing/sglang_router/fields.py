"""Which request fields sglang-router 0.3.2 passes on.

It reads a request into types of its own and writes it anew: what these don't know is dropped without
a word. A test sends every field listed here through the real router.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

GENERATE = frozenset(
    {
        "audio_data",
        "background",
        "bootstrap_host",
        "bootstrap_pair_key",
        "bootstrap_port",
        "bootstrap_room",
        "conversation_id",
        "custom_labels",
        "custom_logit_processor",
        "data_parallel_rank",
        "extra_key",
        "image_data",
        "input_embeds",
        "input_ids",
        "log_metrics",
        "logprob_start_len",
        "lora_id",
        "lora_path",
        "modalities",
        "model",
        "no_logs",
        "priority",
        "return_bytes",
        "return_entropy",
        "return_hidden_states",
        "return_logprob",
        "return_text_in_logprobs",
        "rid",
        "sampling_params",
        "session_params",
        "stream",
        "text",
        "token_ids_logprob",
        "top_logprobs_num",
        "video_data",
    }
)

SAMPLING = frozenset(
    {
        "ebnf",
        "frequency_penalty",
        "ignore_eos",
        "json_schema",
        "max_new_tokens",
        "min_new_tokens",
        "min_p",
        "n",
        "no_stop_trim",
        "presence_penalty",
        "regex",
        "repetition_penalty",
        "sampling_seed",
        "skip_special_tokens",
        "stop",
        "stop_token_ids",
        "temperature",
        "top_k",
        "top_p",
    }
)

CHAT = frozenset(
    {
        "chat_template_kwargs",
        "continue_final_message",
        "ebnf",
        "frequency_penalty",
        "ignore_eos",
        "logit_bias",
        "logprobs",
        "lora_path",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "metadata",
        "min_p",
        "min_tokens",
        "modalities",
        "model",
        "n",
        "no_stop_trim",
        "parallel_tool_calls",
        "presence_penalty",
        "reasoning_effort",
        "regex",
        "repetition_penalty",
        "response_format",
        "return_hidden_states",
        "seed",
        "separate_reasoning",
        "service_tier",
        "session_params",
        "skip_special_tokens",
        "stop",
        "stop_token_ids",
        "stream",
        "stream_options",
        "stream_reasoning",
        "temperature",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
        "top_p",
        "verbosity",
    }
)

_MAY_BE_LOST = frozenset({"user", "return_prompt_token_ids"})
"""Dropped, and no answer is wrong for it: SGLang doesn't read the first, and the second asks for a
field in the answer that callers must do without anyway, since not every engine knows it."""


def lost_fields(path: str, payload: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of a request that would not arrive; one without a value counts as absent."""
    if path != "/generate":
        return _unknown(payload, CHAT)
    sampling: object = payload.get("sampling_params")
    inner = _unknown(cast("Mapping[str, Any]", sampling), SAMPLING) if isinstance(sampling, Mapping) else ()
    return (*_unknown(payload, GENERATE), *(f"sampling_params.{name}" for name in inner))


def _unknown(fields: Mapping[str, Any], known: Iterable[str]) -> tuple[str, ...]:
    present = {name for name, value in fields.items() if value is not None}
    return tuple(sorted(present - frozenset(known) - _MAY_BE_LOST))

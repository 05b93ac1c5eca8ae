"""``[roles.rollout.options]``."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen, validators

PLACEHOLDER = "{prompt}"

CHAT_ML = "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
"""One user turn in ChatML, the format of SmolLM2, Qwen and many other instruct models."""


def _has_placeholder(_: object, attribute: Any, value: str) -> None:
    if PLACEHOLDER not in value:
        raise ValueError(f"{attribute.name} must contain {PLACEHOLDER}, found {value!r:.80}")


@frozen(kw_only=True)
class RolloutOptions:
    """How prompts become requests.

    prompt_template: text sent for a prompt; ``{prompt}`` stands for the prompt's text and nothing
        else is replaced. Solved examples before it help a small model. ``{prompt}`` alone sends
        the text as it is.
    lora_path: LoRA adapter that samples are made with, as the engine has it loaded. None: the model alone.
    top_k: ids of the most probable tokens to keep at each place of a response, for a teacher that scores
        them too.
    """

    prompt_template: str = field(default=CHAT_ML, validator=_has_placeholder)
    lora_path: str | None = field(default=None, validator=validators.optional(validators.min_len(1)))
    top_k: int = field(default=0, validator=validators.ge(0))

    def render(self, text: str) -> str:
        return self.prompt_template.replace(PLACEHOLDER, text)

"""``[roles.rollout.options]``."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

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
    """

    prompt_template: str = field(default=CHAT_ML, validator=_has_placeholder)

    def render(self, text: str) -> str:
        return self.prompt_template.replace(PLACEHOLDER, text)

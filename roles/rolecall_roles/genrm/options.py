"""``[roles.genrm.options]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen


@frozen(kw_only=True)
class GenRMOptions:
    """How the judge is asked.

    chat_template_kwargs: given to the model's chat template with every judge request, e.g.
        ``{enable_thinking = false}``.
    """

    chat_template_kwargs: Mapping[str, Any] = field(factory=dict)

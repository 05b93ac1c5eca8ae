"""Reward adapters turn one sample into one reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from rolecall.batches.sample import Sample


class ScoringClient(Protocol):
    """Asks the role that an adapter or a stage needs awake.

    Both calls raise :class:`~rolecall.errors.RequestError`; neither repeats a POST.
    """

    async def generate(
        self,
        payload: Mapping[str, Any],
        *,
        model: str | None = None,
        route_key: str | None = None,
        affinity_key: str | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """POST ``/generate`` (the engine's native payload) and return the parsed answer."""
        ...

    async def chat(
        self,
        messages: list[dict[str, Any]],
        *,
        sampling: Mapping[str, Any] | None = None,
        model: str | None = None,
        route_key: str | None = None,
        affinity_key: str | None = None,
        timeout_s: float | None = None,
    ) -> str:
        """Ask with chat messages (the selected model's template) and return the answer's text."""
        ...


class RewardAdapter(Protocol):
    """Constructed with an instance of its ``options`` class.

    ``supports_deferred``, ``role`` and ``reads`` are read from the instance: an adapter for which they follow
    from its options, such as one that combines others, sets them there, and has what holds without any on
    the class.

    Attributes:
        supports_deferred: may run after generation has ended; preflight refuses a deferred
            job whose adapter doesn't.
        role: role that must be awake while it scores, None for a rule that needs no model.
        reads: sample attributes it uses, e.g. ``{"response", "prompt.answer"}``.
    """

    name: ClassVar[str]
    api_version: ClassVar[int]
    options: ClassVar[type[Any]]
    supports_deferred: ClassVar[bool]
    role: ClassVar[str | None]
    reads: ClassVar[frozenset[str]]

    def __init__(self, options: Any) -> None: ...

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        """Return a finite reward. ``client`` talks to ``role``; None when ``role`` is None.

        Raises:
            Exception: anything raised is handled by the reward's ``on_error`` policy; an
                adapter never turns an error into a number.
        """
        ...

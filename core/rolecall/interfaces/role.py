"""Roles: payloads, endpoints and scoring stages of one inference role.

The core knows roles only through this contract. A role never reaches into another role: what
it needs from outside comes in as arguments.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from attrs import field, frozen

from rolecall.batches.sample import Prompt, Sample, Scores
from rolecall.interfaces.reward_adapter import RewardAdapter, ScoringClient


class WeightSource(StrEnum):
    """Where a model's weights come from. STATIC weights never change and carry no version."""

    STATIC = "STATIC"
    ACTOR = "ACTOR"
    DCS = "DCS"


@frozen(kw_only=True)
class UpstreamCall:
    """What a gateway sends to the engine for one ``/generate`` request.

    path: engine path, ``/generate`` or ``/v1/chat/completions``.
    payload: the body; model and route key are already taken out, and a chat path gets its
        ``model`` set by the gateway.
        A value that is to differ from the request's is replaced, never changed in place: values
        that are still the request's own are sent on as the bytes they came in.
    reply: maps the engine's parsed unary answer to the role's; None passes bytes through.
    """

    path: str
    payload: Mapping[str, Any]
    reply: Callable[[Any], Any] | None = None


@frozen(kw_only=True)
class Endpoint:
    """One more HTTP endpoint of a role's gateway.

    ``handler`` gets the Starlette request and returns a Starlette response; an endpoint with
    the method and path of a standard one is refused at start-up, unless ``query`` names a
    query parameter value that selects it (``{"schema": "1"}``).

    ``operation`` is what the gateway's OpenAPI document says of it: an operation object (``summary``,
    ``parameters``, ``requestBody``, ``responses``). Errors of all endpoints are added to it.
    """

    method: str
    path: str
    handler: Callable[[Any, Any], Awaitable[Any]]
    """Called as ``handler(request, gateway)``; ``gateway.snapshot()`` awaits the role's snapshot."""
    query: Mapping[str, str] = field(factory=dict)
    operation: Mapping[str, Any] = field(factory=dict)


@frozen(kw_only=True)
class PayloadShape:
    """A ``/generate`` payload that a role takes beside the engines' own, as its document shows it.

    request: JSON schema of the body; the gateway adds ``model``, ``route_key`` and ``rid``.
    answer: JSON schema of the unary answer to it.
    """

    request: Mapping[str, Any]
    answer: Mapping[str, Any]


Progress = Callable[[int, int], None]
"""Called as ``progress(samples, tokens)`` with what was just finished, not totals."""


@frozen(kw_only=True)
class StageContext:
    """What a running stage may use.

    client: talks to the stage's role; None for a stage without a role.
    max_concurrency: requests in flight at once.
    progress: to be called as samples finish.
    """

    client: ScoringClient | None
    max_concurrency: int
    progress: Progress


@frozen(kw_only=True)
class Stage:
    """One scoring stage of a deferred batch.

    name: unique in the job, e.g. ``judge``.
    role: role that must be awake, None for none.
    reads, writes: names of sample attributes or score fields; they order the stages.
    run: scores all samples; returns the written fields for every sample id, or raises.
    """

    name: str
    role: str | None
    reads: frozenset[str]
    writes: frozenset[str]
    run: Callable[[Sequence[Sample], StageContext], Awaitable[Scores]]


@frozen(kw_only=True)
class GenerationContext:
    """What the generation stage may use. ``sampling`` is the job's ``[batch.sampling]``.

    log_probs: whether the samples need log-probabilities. An evaluation trains on nothing and wants none;
        with them is no error, it only costs.
    prompt_ids: token ids by prompt id, from a caller that has made them: such a prompt is sent with exactly
        these, and its text is not.
    """

    client: ScoringClient
    samples_per_prompt: int
    sampling: Mapping[str, Any]
    max_concurrency: int
    progress: Progress
    log_probs: bool = True
    prompt_ids: Mapping[str, Sequence[int]] = field(factory=dict)


Generate = Callable[[Sequence[Prompt], GenerationContext], Awaitable[Sequence[Sample]]]
"""Return complete groups only, in prompt order: every prompt's samples or none of them."""


@frozen(kw_only=True)
class NamedReward:
    """One configured reward with its adapter instance and error policy."""

    name: str
    adapter: RewardAdapter
    on_error: str
    retries: int
    timeout_s: float


@frozen(kw_only=True)
class StageRequest:
    """What a role may know when it declares its stages.

    rewards: the job's rewards whose adapter names this role; each must be written by one of the
        returned stages, as :func:`~rolecall.batches.rewards.reward_field` names it. The core
        combines them into ``reward``.
    route_keys: route keys configured for this role; a stage sends no other.
    models: the role's models, each with where its weights come from.
    """

    rewards: tuple[NamedReward, ...] = ()
    route_keys: frozenset[str] = frozenset()
    models: Mapping[str, WeightSource] = field(factory=dict)


class Role(Protocol):
    """The plugin; constructed with an instance of its ``options`` class.

    Attributes:
        weight_sources: allowed weight sources; the first is the default. Empty for a role without
            engines, which has neither models nor devices.
        deferrable: may share devices with other roles in different phases.

    A role may have two attributes more. ``more_payloads``, where its ``adapt_generate`` takes more than the
    engines' own payload: a sequence of :class:`PayloadShape`, for the gateway's OpenAPI document.
    ``models_optional``, a bool on the class and on the instance: whether a role with engines may have no
    models with these options, e.g. because they name engines elsewhere.
    """

    name: ClassVar[str]
    api_version: ClassVar[int]
    options: ClassVar[type[Any]]
    weight_sources: ClassVar[tuple[WeightSource, ...]]
    deferrable: ClassVar[bool]

    def __init__(self, options: Any) -> None: ...

    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        """Check a ``/generate`` body and say what to send.

        A long list of token ids comes as a :class:`TokenIds`: a sequence, but no list.

        Raises:
            PayloadError: names the field that is wrong.
        """
        ...

    def endpoints(self) -> Sequence[Endpoint]:
        """Endpoints beyond the standard ones."""
        ...

    def generation(self) -> Generate | None:
        """The generation stage, if this role makes samples; one role of a job does."""
        ...

    def scoring_stages(self, request: StageRequest) -> Sequence[Stage]:
        """The role's scoring stages, possibly none."""
        ...

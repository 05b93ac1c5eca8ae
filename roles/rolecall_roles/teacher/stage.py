"""The teacher stage: prefills prompt and response, takes log-probabilities, generates nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from attrs import frozen

from rolecall.api import (
    Sample,
    ScoreFields,
    Scores,
    ScoringClient,
    ScoringError,
    Stage,
    StageContext,
    StageRequest,
    WeightSource,
    gather_bounded,
)

from .options import TeacherOptions
from .requests import fields_written, score_sample

if TYPE_CHECKING:
    from .external import Teacher  # brings asyncio; planning must be quick

STAGE = "teacher"


def teacher_stage(role: str, options: TeacherOptions, request: StageRequest) -> Stage:
    """Return the stage. It needs the role awake unless all its teachers are external.

    Raises:
        ScoringError: a route key leads both to a model of the role and to an external teacher.
    """
    route = _Route(options, request.route_keys, managed=bool(request.models) or not options.external)
    versioned = any(source is not WeightSource.STATIC for source in request.models.values())

    async def run(samples: Sequence[Sample], context: StageContext) -> Scores:
        wanted = {sample.sample_id: route.of(sample) for sample in samples}
        used = {way.external for way in wanted.values()}
        external = {name: teacher for name, teacher in options.external.items() if name in used}
        async with AsyncExitStack() as stack:
            teachers: Mapping[str, Teacher] = {}
            if external:
                from .external import connected

                teachers = await stack.enter_async_context(connected(external, context.max_concurrency))

            async def score(sample: Sample) -> ScoreFields:
                way = wanted[sample.sample_id]
                asking = _Asking(context.client, teachers, way, way.affinity(sample), options.timeout_s)
                fields = await score_sample(
                    sample, asking, options, versioned=versioned, external=way.external is not None
                )
                context.progress(1, len(sample.response_ids))
                return fields

            scored = await gather_bounded(samples, score, context.max_concurrency)
        return {sample.sample_id: fields for sample, fields in zip(samples, scored, strict=True)}

    return Stage(
        name=STAGE,
        role=role if route.managed else None,
        reads=frozenset(
            {"prompt_ids", "response_ids", "prompt.media", f"prompt.{options.route_by}"}
            | ({"rollout_topk_ids"} if options.union else set())
        ),
        writes=fields_written(options, versioned=versioned),
        run=run,
    )


@frozen
class _Way:
    """Where a sample goes. ``external`` is a teacher's name, None for the role's own models."""

    external: str | None
    route_key: str | None

    def affinity(self, sample: Sample) -> str:
        """Route key and group: a group's samples meet one replica's prefix cache."""
        return sample.group_id if self.route_key is None else f"{self.route_key}:{sample.group_id}"


class _Route:
    """From a sample to its teacher."""

    def __init__(self, options: TeacherOptions, route_keys: frozenset[str], *, managed: bool) -> None:
        self.managed = managed
        self._route_by = options.route_by
        self._route_keys = route_keys
        self._external = {key: name for name, each in options.external.items() for key in each.route_keys}
        self._rest = next((name for name, each in options.external.items() if not each.route_keys), None)
        for key in sorted(route_keys & self._external.keys()):
            raise ScoringError(
                f'teacher: the route key "{key}" leads to a model of the role and to the external teacher '
                f'"{self._external[key]}"; one may have it'
            )

    def of(self, sample: Sample) -> _Way:
        key = self._key(sample)
        if key in self._external:
            return _Way(self._external[key], key)
        if key in self._route_keys:
            return _Way(None, key)
        if self._rest is not None or self.managed:
            return _Way(self._rest, None)
        raise ScoringError(
            f'teacher: sample "{sample.sample_id}": no teacher takes its {self._route_by} {key!r:.80}; '
            f"route keys: {', '.join(sorted(self._external)) or 'none'}"
        )

    def _key(self, sample: Sample) -> str | None:
        if self._route_by == "data_source":
            return sample.prompt.data_source
        key = sample.prompt.metadata.get(self._route_by.removeprefix("metadata."))
        return key if isinstance(key, str) else None


@frozen
class _Asking:
    """Sends one sample's payloads to its teacher."""

    client: ScoringClient | None
    external: Mapping[str, Teacher]
    way: _Way
    affinity_key: str
    timeout_s: float

    async def __call__(self, payload: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.way.external is not None:
            teacher = self.external[self.way.external]
            return await teacher.generate(payload, affinity_key=self.affinity_key, timeout_s=self.timeout_s)
        assert self.client is not None, "a stage with a role gets a client"
        return await self.client.generate(
            payload,
            route_key=self.way.route_key,
            affinity_key=self.affinity_key,
            timeout_s=self.timeout_s,
        )

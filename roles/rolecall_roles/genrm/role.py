"""The judge role as the core sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import evolve

from rolecall.api import (
    ROLECALL_API,
    Endpoint,
    Generate,
    PayloadShape,
    Sample,
    Scores,
    Stage,
    StageContext,
    StageRequest,
    UpstreamCall,
    WeightSource,
    check_native_payload,
    reward_stage,
)

from .judge_protocol import SHAPE, judge_call
from .legacy_health import OPERATION, legacy_health
from .options import GenRMOptions
from .template_client import TemplateClient

STAGE = "judge"


class GenRMRole:
    """Judges; what a verdict means is the reward adapter's affair."""

    name: ClassVar[str] = "genrm"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[GenRMOptions]] = GenRMOptions
    weight_sources: ClassVar[tuple[WeightSource, ...]] = (WeightSource.STATIC,)
    deferrable: ClassVar[bool] = True
    more_payloads: ClassVar[Sequence[PayloadShape]] = (SHAPE,)

    def __init__(self, options: GenRMOptions) -> None:
        self._kwargs = options.chat_template_kwargs

    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        if "messages" in payload:
            return judge_call(payload, self._kwargs)
        check_native_payload(payload)
        return UpstreamCall(path="/generate", payload=payload)

    def endpoints(self) -> Sequence[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/health",
                handler=legacy_health,
                query={"schema": "1"},
                operation=OPERATION,
            )
        ]

    def generation(self) -> Generate | None:
        return None

    def scoring_stages(self, request: StageRequest) -> Sequence[Stage]:
        """One stage with all rewards that ask this role; none without rewards."""
        if not request.rewards:
            return ()
        stage = reward_stage(name=STAGE, role=self.name, rewards=request.rewards)
        if not self._kwargs:
            return [stage]

        async def run(samples: Sequence[Sample], context: StageContext) -> Scores:
            assert context.client is not None, "a stage with a role gets a client"
            client = TemplateClient(context.client, self._kwargs)
            return await stage.run(samples, evolve(context, client=client))

        return [evolve(stage, run=run)]

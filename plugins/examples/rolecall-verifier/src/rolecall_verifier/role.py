"""Role ``verifier``: runs generated Python against the tests that came with its prompt. It has no engine.

Its stage reads responses and writes how much of the tests each passed; a program that fails is scored so, and
only a verifier that can't do its work fails the batch. Its gateway runs single programs: ``POST /verify``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rolecall.api import (
    Endpoint,
    Generate,
    PayloadError,
    Role,
    Sample,
    ScoreFields,
    Scores,
    Stage,
    StageContext,
    StageRequest,
    UpstreamCall,
    WeightSource,
    gather_bounded,
    hookimpl,
)

from .endpoint import VerifyEndpoint
from .extract import program_in, tests_of
from .options import VerifierOptions
from .sandbox import Outcome, Sandbox, Verdict

STAGE = "verify"
SHARE = "verifier_share"
OUTCOME = "verifier_outcome"


class Verifier:
    """Writes ``verifier_share``, 0 to 1, and ``verifier_outcome``, a word of :class:`Outcome`."""

    name: ClassVar[str] = "verifier"
    api_version: ClassVar[int] = 1
    options: ClassVar[type[VerifierOptions]] = VerifierOptions
    weight_sources: ClassVar[tuple[WeightSource, ...]] = ()
    deferrable: ClassVar[bool] = True

    def __init__(self, options: VerifierOptions) -> None:
        self._tests = options.tests
        self._sandbox = Sandbox(options)

    def adapt_generate(self, payload: dict[str, Any]) -> UpstreamCall:
        name = next(iter(payload), "text")
        raise PayloadError(
            f"{name}: this role has no engine that could generate; send programs to POST /verify", field=name
        )

    def endpoints(self) -> Sequence[Endpoint]:
        return [Endpoint(method="POST", path="/verify", handler=VerifyEndpoint(self._sandbox))]

    def generation(self) -> Generate | None:
        return None

    def scoring_stages(self, request: StageRequest) -> Sequence[Stage]:
        del request  # no reward names it; `verified` reads what its stage writes
        return [
            Stage(
                name=STAGE,
                role=None,
                reads=frozenset({"response", f"prompt.{self._tests}"}),
                writes=frozenset({SHARE, OUTCOME}),
                run=self._run,
            )
        ]

    async def _run(self, samples: Sequence[Sample], context: StageContext) -> Scores:
        async def score(sample: Sample) -> ScoreFields:
            verdict = await self._verdict(sample)
            context.progress(1, len(sample.response_ids))
            return {SHARE: verdict.share, OUTCOME: verdict.outcome.value}

        scored = await gather_bounded(samples, score, context.max_concurrency)
        scores: Mapping[str, ScoreFields] = {
            sample.sample_id: fields for sample, fields in zip(samples, scored, strict=True)
        }
        return scores

    async def _verdict(self, sample: Sample) -> Verdict:
        tests = tests_of(sample.prompt, self._tests)
        program = program_in(sample.response)
        if program is None:
            return Verdict(outcome=Outcome.NO_CODE, tests=len(tests))
        return await self._sandbox.run(program, tests)


@hookimpl
def rolecall_role() -> type[Role]:
    """Return the role's class."""
    return Verifier

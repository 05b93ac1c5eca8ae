"""``POST /verify`` of the role's gateway: one program, its tests, one verdict.

Body: ``{"program": text}`` or ``{"response": text}`` with a fenced block, and ``"tests"``: text or a list of
texts. Answer: the fields of a verdict.
"""

from __future__ import annotations

import json
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rolecall.api import PayloadError, RequestError, ScoringError

from .extract import checked_tests, program_in
from .sandbox import Outcome, Sandbox, Verdict

MOST_BYTES = 1024**2
_FIELDS = ("program", "response", "tests")


class BodyTooLarge(RequestError):
    """413."""

    status = 413


class VerifyEndpoint:
    """Answers a failing program with 200 and its verdict; errors are the caller's or the verifier's own."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def __call__(self, request: Request, gateway: Any) -> Response:
        del gateway
        body = await _body(request)
        program, tests = _program(body), _tests(body)
        if program is None:
            verdict = Verdict(outcome=Outcome.NO_CODE, tests=len(tests))
        else:
            try:
                verdict = await self._sandbox.run(program, tests)
            except ScoringError as error:
                raise RequestError(str(error)) from error
        return JSONResponse(
            {
                "outcome": verdict.outcome.value,
                "passed": verdict.passed,
                "tests": verdict.tests,
                "detail": verdict.detail,
                "failures": [{"test": test, "raised": raised} for test, raised in verdict.failures.items()],
                "output": verdict.output,
                "truncated": verdict.truncated,
                "seconds": round(verdict.seconds, 3),
            }
        )


async def _body(request: Request) -> dict[str, Any]:
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > MOST_BYTES:
            raise BodyTooLarge(f"the body is larger than {MOST_BYTES} bytes")
    try:
        body = json.loads(received)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"body: is not JSON: {error}", field="body") from error
    if not isinstance(body, dict):
        raise PayloadError(f"body: must be an object, found {body!r:.60}", field="body")
    for name in cast("dict[str, Any]", body):
        if name not in _FIELDS:
            raise PayloadError(f"{name}: is no field here; fields: {', '.join(_FIELDS)}", field=name)
    return cast("dict[str, Any]", body)


def _program(body: dict[str, Any]) -> str | None:
    given = [name for name in ("program", "response") if name in body]
    if len(given) != 1:
        raise PayloadError("program: give either program or response", field="program")
    text = body[given[0]]
    if not isinstance(text, str):
        raise PayloadError(f"{given[0]}: must be text, found {text!r:.60}", field=given[0])
    return text if given == ["program"] else program_in(text)


def _tests(body: dict[str, Any]) -> list[str]:
    try:
        return checked_tests(body.get("tests"))
    except ValueError as error:
        raise PayloadError(f"tests: {error}", field="tests") from error

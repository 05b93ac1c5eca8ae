"""What a gateway does of a role's scaling endpoints: reads requests, asks the role's service, answers.

It scales nothing itself. :class:`ScalingPort` is the way to the service; a gateway that has none, as one
outside of the job's Ray, says so (501).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rolecall.errors import (
    JobError,
    ModelUnavailableError,
    PayloadError,
    RequestError,
    ScaleConflictError,
    ScaleRefused,
    UnknownScaleOperationError,
)
from rolecall.gateway.body import JsonBody, read_body
from rolecall.gateway.errors import plain_error
from rolecall.gateway.paths import path_in
from rolecall.scaling.request import ScaleRequest, scale_in_from, scale_out_from

_READERS: dict[str, Callable[[Any], ScaleRequest]] = {"scale_out": scale_out_from, "scale_in": scale_in_from}

_LONGEST_WAIT_S = 999


class ScalingPort(Protocol):
    """The scaler of one role, wherever it runs. Operations are JSON values."""

    async def begin(self, request: ScaleRequest) -> dict[str, Any]: ...

    async def status(self, operation: str, wait_s: float) -> dict[str, Any]: ...

    async def cancel(self, operation: str) -> dict[str, Any]: ...

    async def operations(self) -> list[dict[str, Any]]: ...


class NoScalingHereError(RequestError):
    """This gateway has no way to the role's service (501)."""

    status = 501


class ScalePages:
    """Handlers of the scaling endpoints; ``action`` is ``scale_out`` or ``scale_in``."""

    def __init__(self, port: ScalingPort | None, *, max_body_bytes: int, longest_wait_s: float) -> None:
        self._port = port
        self._max_body_bytes = max_body_bytes
        self._longest_wait_s = longest_wait_s

    async def begin(self, request: Request, action: str) -> Response:
        body = JsonBody(await read_body(request.receive, request.headers.raw, self._max_body_bytes))
        wanted = _READERS[action](body.fields)
        return await self._answer(request, self._service.begin(wanted), 200 if wanted.dry_run else 202)

    async def listed(self, request: Request, action: str) -> Response:
        async def found() -> dict[str, Any]:
            operations = await self._service.operations()
            return {"operations": [each for each in operations if each["action"] == action]}

        return await self._answer(request, found())

    async def status(self, request: Request, action: str) -> Response:
        wait = request.query_params.get("wait_s", "0")
        if not (wait.isascii() and wait.isdigit() and len(wait) <= len(str(_LONGEST_WAIT_S))):
            raise PayloadError(f"wait_s: must be whole seconds up to {_LONGEST_WAIT_S}", field="wait_s")
        return await self._answer(request, self._one(request, action, min(int(wait), self._longest_wait_s)))

    async def cancel(self, request: Request, action: str) -> Response:
        async def cancelled() -> dict[str, Any]:
            found = await self._one(request, action, 0.0)
            return await self._service.cancel(found["id"])

        return await self._answer(request, cancelled())

    async def _one(self, request: Request, action: str, wait_s: float) -> dict[str, Any]:
        operation = request.path_params["id"]
        found = await self._service.status(operation, wait_s)
        if found["action"] != action:
            raise UnknownScaleOperationError(f"{operation} is a {found['action']}, no {action}")
        return found

    async def _answer(self, request: Request, asked: Any, status: int = 200) -> Response:
        path = path_in(request.scope)
        try:
            return JSONResponse(await asked, status_code=status)
        except UnknownScaleOperationError as error:
            return plain_error(404, str(error), path)
        except ScaleConflictError as error:
            return plain_error(409, str(error), path)
        except ScaleRefused as error:
            return plain_error(400, str(error), path)
        except JobError as error:
            raise ModelUnavailableError(f"the role's service can't be asked: {error}") from error

    @property
    def _service(self) -> ScalingPort:
        if self._port is None:
            raise NoScalingHereError(
                "this gateway has no way to the role's service; ask a gateway of the job itself, or "
                "`rolecall scale`"
            )
        return self._port

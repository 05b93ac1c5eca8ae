"""``remote_http``: asks a service for the reward of a sample, by HTTP. The format is in
``docs/reference/rewards.md``."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast
from weakref import WeakKeyDictionary

from attrs import Attribute, define, field, frozen, validators

from rolecall.api import (
    ROLECALL_API,
    DeadlineError,
    ModelUnavailableError,
    RewardAdapter,
    Sample,
    ScoringClient,
    UpstreamError,
    UpstreamStatusError,
    hookimpl,
)

from .circuit import Circuit

if TYPE_CHECKING:
    import httpx  # a while to import; nothing is asked while a job is planned

_OVERLOAD = frozenset({429, 503})
_MOST_WAIT_S = 60.0
_ANSWER_BYTES = 2**20


def _is_url(_: object, attribute: Attribute[str], value: str) -> None:
    scheme, _, rest = value.partition("://")
    if scheme not in ("http", "https") or not rest or "@" in rest.split("/")[0]:
        raise ValueError(
            f'{attribute.name} must be "http://host/path" or "https://host/path", without a password in it, '
            f"found {value!r:.80}"
        )


def _is_set(_: object, attribute: Attribute[str | None], value: str | None) -> None:
    if value is not None and not os.environ.get(value):
        raise ValueError(
            f"{attribute.name} names the environment variable {value}, which is not set where rolecall runs"
        )


@frozen(kw_only=True)
class RemoteHTTPOptions:
    """``[rewards.<name>.options]`` of ``remote_http``.

    url: where a sample is posted.
    token_env: the environment variable that holds a bearer token; None sends none.
    result: the answer's field with the reward, names with dots between them.
    metadata: which of the prompt's metadata are sent along.
    extra: sent along as it is, in the field ``extra``.
    concurrency: requests under way at once; more wait.
    connect_s, answer_s: seconds until there is a connection, and from then until there is an answer.
    overloads: how often a request is sent again when the service answers 429 or 503.
    repeatable: whether a request may be sent again although the first may have been worked on. Refused
        connections are tried again in any case, resets and silence only then.
    deaths: failures in a row to reach the service that stop all asking.
    pause_s: for how long at first; then one request finds out.
    """

    url: str = field(validator=_is_url)
    token_env: str | None = field(default=None, validator=_is_set)
    result: str = field(default="reward", validator=validators.min_len(1))
    metadata: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(factory=dict)
    concurrency: int = field(default=32, validator=validators.gt(0))
    connect_s: float = field(default=5.0, validator=validators.gt(0))
    answer_s: float = field(default=60.0, validator=validators.gt(0))
    overloads: int = field(default=8, validator=validators.ge(0))
    repeatable: bool = False
    deaths: int = field(default=3, validator=validators.gt(0))
    pause_s: float = field(default=2.0, validator=validators.gt(0))


@define
class _Service:
    """The service as one event loop sees it: connections belong to a loop."""

    http: httpx.AsyncClient
    circuit: Circuit
    free: asyncio.Semaphore


class RemoteHTTP:
    """One request a sample. Errors are told apart: the service is busy, it is dead, it refuses, or what it
    answers is no reward."""

    name: ClassVar[str] = "remote_http"
    api_version: ClassVar[int] = ROLECALL_API
    options: ClassVar[type[RemoteHTTPOptions]] = RemoteHTTPOptions
    supports_deferred: ClassVar[bool] = True
    role: ClassVar[str | None] = None
    reads: ClassVar[frozenset[str]] = frozenset(
        {"response", "response_ids", "finish_reason", "prompt.text", "prompt.answer", "prompt.data_source"}
        | {"prompt.metadata"}
    )

    def __init__(self, options: RemoteHTTPOptions) -> None:
        self._options = options
        self._services: WeakKeyDictionary[asyncio.AbstractEventLoop, _Service] = WeakKeyDictionary()

    async def score(self, sample: Sample, client: ScoringClient | None) -> float:
        """Return the service's reward.

        Raises:
            ModelUnavailableError: it is overloaded, or taken for dead; says when to ask again.
            UpstreamError: it can't be reached.
            DeadlineError: it gave no answer in time.
            UpstreamStatusError: it answered with another error.
            ValueError: its answer has no finite number where the reward should be.
        """
        del client
        service = self._service()
        question = self.question(sample)
        async with service.free:
            return _reward(await self._ask(service, question), self._options.result)

    def question(self, sample: Sample) -> dict[str, Any]:
        """Return what is posted about a sample."""
        prompt, options = sample.prompt, self._options
        missing = [name for name in options.metadata if name not in prompt.metadata]
        if missing:
            raise ValueError(f'prompt "{prompt.prompt_id}" has no metadata {", ".join(missing)}')
        question: dict[str, Any] = {
            "sample_id": sample.sample_id,
            "group_id": sample.group_id,
            "prompt": prompt.text,
            "answer": prompt.answer,
            "data_source": prompt.data_source,
            "response": sample.response,
            "response_tokens": len(sample.response_ids),
            "finish_reason": sample.finish_reason,
            "metadata": {name: prompt.metadata[name] for name in options.metadata},
        }
        return question | ({"extra": dict(options.extra)} if options.extra else {})

    async def _ask(self, service: _Service, question: Mapping[str, Any]) -> Any:
        """Post until there is an answer, or an error that nothing can be done about."""
        import httpx

        loop, circuit, options = asyncio.get_running_loop(), service.circuit, self._options
        body = json.dumps(question).encode()
        busy = again = 0
        while True:
            await self._admitted(circuit)
            failure: Exception
            left = True
            try:
                async with asyncio.timeout(options.connect_s + options.answer_s):
                    answer = await _post(service.http, options.url, body)
                left = False
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                left, repeatable = False, True  # nothing was sent
                failure = UpstreamError(f"{options.url} could not be reached: {error!r}")
                failure.__cause__ = error
            except (TimeoutError, httpx.TimeoutException) as error:
                left, repeatable = False, options.repeatable
                failure = DeadlineError(f"{options.url} gave no answer within {options.answer_s:g} s")
                failure.__cause__ = error
            except httpx.HTTPError as error:
                left, repeatable = False, options.repeatable
                failure = UpstreamError(f"{options.url} broke off its answer: {error!r}")
                failure.__cause__ = error
            else:
                if answer.status not in _OVERLOAD:
                    circuit.answered()
                    return _checked(answer, options.url)
                wait_s = _retry_after_s(answer.retry_after, busy)
                circuit.overloaded(loop.time(), wait_s)
                busy += 1
                if busy > options.overloads:
                    raise ModelUnavailableError(
                        f"{options.url} is overloaded: it answered {answer.status} {busy} times",
                        retry_after_s=wait_s,
                    )
                continue
            finally:
                if left:
                    circuit.unknown(loop.time())
            circuit.died(loop.time())
            again += 1
            if again > 1 or not repeatable:
                raise failure

    async def _admitted(self, circuit: Circuit) -> None:
        """Wait as long as the service asked for; raise if it is taken for dead."""
        loop = asyncio.get_running_loop()
        while (wait_s := circuit.wait_s(loop.time())) > 0:  # noqa: ASYNC110 - it may ask for more meanwhile
            await asyncio.sleep(wait_s)
        if not circuit.admits(loop.time()):
            open_s = circuit.open_for_s(loop.time())
            raise ModelUnavailableError(
                f"{self._options.url} could not be reached several times in a row; it is not asked for the "
                f"next {open_s:.1f} s",
                retry_after_s=max(open_s, 0.05),
            )

    def _service(self) -> _Service:
        loop = asyncio.get_running_loop()
        service = self._services.get(loop)
        if service is None:
            import httpx

            options = self._options
            token = None if options.token_env is None else os.environ[options.token_env]
            service = self._services[loop] = _Service(
                http=httpx.AsyncClient(
                    headers={"content-type": "application/json"}
                    | ({} if token is None else {"authorization": f"Bearer {token}"}),
                    timeout=httpx.Timeout(None, connect=options.connect_s),
                    limits=httpx.Limits(max_connections=options.concurrency),
                    follow_redirects=False,  # a token is not carried to where nobody meant it to go
                ),
                circuit=Circuit(options.deaths, options.pause_s),
                free=asyncio.Semaphore(options.concurrency),
            )
        return service


@frozen
class _Answer:
    status: int
    retry_after: str | None
    body: bytes


async def _post(http: httpx.AsyncClient, url: str, body: bytes) -> _Answer:
    """Send it once and read the answer, as far as it is of any use."""
    async with http.stream("POST", url, content=body) as response:
        read = bytearray()
        async for chunk in response.aiter_bytes():
            read += chunk
            if len(read) > _ANSWER_BYTES:
                raise UpstreamError(f"{url} answered with more than {_ANSWER_BYTES} bytes")
        return _Answer(response.status_code, response.headers.get("retry-after"), bytes(read))


def _checked(answer: _Answer, url: str) -> Any:
    if answer.status != 200:
        message = f"{url} answered {answer.status}: {answer.body!r:.120}"
        raise UpstreamStatusError(answer.status, answer.body, message)
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise UpstreamError(f"{url} answered what is no JSON: {answer.body!r:.120}") from error


def _retry_after_s(given: str | None, times: int) -> float:
    """Return what the service asked for, in seconds; else pauses that grow. A date is not understood."""
    try:
        asked_s = float(given) if given is not None else math.nan
    except ValueError:
        asked_s = math.nan
    if not asked_s >= 0:
        asked_s = 0.25 * 2**times
    return min(asked_s, _MOST_WAIT_S)


def _reward(answer: object, path: str) -> float:
    value = answer
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise ValueError(f"the service's answer has no field {path}: {answer!r:.120}")
        value = cast("Mapping[str, object]", value)[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{path} must be a number, found {value!r:.80}")
    try:
        reward = float(value)
    except OverflowError as error:
        raise ValueError(f"{path} must be a finite number, found one that is too large") from error
    if not math.isfinite(reward):
        raise ValueError(f"{path} must be a finite number, found {value!r}")
    return reward


@hookimpl
def rolecall_reward_adapter() -> type[RewardAdapter]:
    return RemoteHTTP

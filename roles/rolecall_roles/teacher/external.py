"""External teachers: engines that this job does not run, asked only after they have said who they are.

A teacher behind a changed port is a teacher all the same, of something else: its log-probabilities look right
and are wrong. So before a batch is scored every engine that may be asked has to report the model path and the
vocabulary that the job file expects. One instance is for one batch: the next one asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast

from attrs import frozen

from rolecall.api import (
    Candidate,
    DeadlineError,
    EngineId,
    ScoringClient,
    ScoringError,
    UpstreamError,
    UpstreamStatusError,
    rendezvous,
    role_client,
)

from .external_options import ExternalTeacher

if TYPE_CHECKING:
    import httpx  # a while to import; nothing is asked while a job is planned

_IDENTITY_S = 20.0
"""How long an engine may take to say who it is; SGLang answers some of it after a second."""


class Teacher(Protocol):
    """Whoever answers for the samples of a route key."""

    async def generate(
        self, payload: Mapping[str, Any], *, affinity_key: str, timeout_s: float
    ) -> Mapping[str, Any]: ...


@asynccontextmanager
async def connected(
    teachers: Mapping[str, ExternalTeacher], max_concurrency: int
) -> AsyncGenerator[dict[str, Teacher]]:
    """Yield the teachers by name, all checked; connections are closed at the end of the block.

    Raises:
        ScoringError: an engine is not the one that was expected; names it, and what it is.
        UpstreamError: one can't be reached, or says nothing that can be checked.
    """
    import httpx

    limits = httpx.Limits(max_connections=max_concurrency)
    async with httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as http:
        made = await asyncio.gather(*(_connect(http, name, each) for name, each in teachers.items()))
        yield dict(zip(teachers, made, strict=True))


async def engine_urls(http: httpx.AsyncClient, teacher: ExternalTeacher) -> Sequence[str]:
    """Return the base URLs of its engines: those that were given, or those that its gateway shows.

    Raises:
        UpstreamError: the gateway does not answer as one, or shows no engine of the model.
    """
    if teacher.gateway is None:
        return teacher.urls
    snapshot = await _get(http, f"{teacher.gateway}/engines", teacher)
    models: Any = snapshot.get("models")
    routing: Any = snapshot.get("routing")
    if not isinstance(models, Mapping) or not isinstance(routing, Mapping):
        raise UpstreamError(f"{teacher.gateway}/engines answered no snapshot: it is no role's gateway")
    wanted = teacher.model or routing.get("default_model")
    wanted = routing.get("aliases", {}).get(wanted, wanted)
    if wanted not in models:
        raise UpstreamError(
            f"{teacher.gateway} has no model {wanted!r}; it has: {', '.join(models) or 'none'}. "
            "Name one: model"
        )
    urls = [engine.get("base_url") for engine in models[wanted].get("engines", ())]
    urls = [url for url in urls if isinstance(url, str)]
    if not urls:
        raise UpstreamError(f"{teacher.gateway} shows no engine of {wanted!r} that could be asked who it is")
    return urls


async def check_identity(http: httpx.AsyncClient, url: str, teacher: ExternalTeacher) -> None:
    """Return if the engine at ``url`` has the expected model path and vocabulary.

    An engine that does not report its vocabulary is asked to bias the last token and the one after it: one
    is taken and the other refused, before anything is computed, if and only if it is as large as expected.

    Raises:
        ScoringError: it has another one; says which.
        UpstreamError: it does not answer.
    """
    info = await _get(http, f"{url}/model_info", teacher, instead=f"{url}/get_model_info")
    found = info.get("model_path")
    if found != teacher.model_path:
        raise ScoringError(f"{url} has the model {found!r}, not {teacher.model_path!r}")
    size = info.get("vocab_size")
    if size is not None:
        if size != teacher.vocabulary_size:
            raise ScoringError(f"{url} has a vocabulary of {size!r}, not of {teacher.vocabulary_size}")
        return
    inside = await _takes_bias(http, url, teacher, teacher.vocabulary_size - 1)
    beyond = await _takes_bias(http, url, teacher, teacher.vocabulary_size)
    if not inside or beyond:
        which = "smaller" if not inside else "larger"
        raise ScoringError(
            f"{url} does not report the size of its vocabulary; it is {which} than the expected "
            f"{teacher.vocabulary_size}, as far as it can be told by what it takes"
        )


async def _connect(http: httpx.AsyncClient, name: str, teacher: ExternalTeacher) -> Teacher:
    try:
        urls = await engine_urls(http, teacher)
        await asyncio.gather(*(check_identity(http, url, teacher) for url in urls))
    except ScoringError as error:
        raise ScoringError(f'external teacher "{name}": {error}') from error
    except UpstreamError as error:
        raise UpstreamError(f'external teacher "{name}": {error}') from error
    if teacher.gateway is None:
        return _Engines(http, teacher)
    token = teacher.headers.get("authorization", "").removeprefix("Bearer ") or None
    return _Gateway(await role_client(teacher.gateway, token=token), teacher.model)


class _Engines:
    """Engines with the same model; the samples of a group meet one of them."""

    def __init__(self, http: httpx.AsyncClient, teacher: ExternalTeacher) -> None:
        self._http = http
        self._teacher = teacher
        self._candidates = tuple(
            Candidate(engine_id=EngineId(url), base_url=url, generation=0) for url in teacher.urls
        )

    async def generate(
        self, payload: Mapping[str, Any], *, affinity_key: str, timeout_s: float
    ) -> Mapping[str, Any]:
        """POST it once. A cut connection is all that tells the engine of a request that was given up."""
        url = f"{rendezvous(affinity_key, self._candidates).base_url}/generate"
        answer = await _send(self._http, "POST", url, self._teacher, timeout_s=timeout_s, payload=payload)
        if answer.status_code != 200:
            raise UpstreamStatusError(
                answer.status_code, answer.content, f"{url} answered {answer.status_code}: {answer.text:.200}"
            )
        return _object(answer, url)


@frozen
class _Gateway:
    """The role of another job, asked as this job's own roles are: directly, by its discovery."""

    client: ScoringClient
    model: str | None

    async def generate(
        self, payload: Mapping[str, Any], *, affinity_key: str, timeout_s: float
    ) -> Mapping[str, Any]:
        return await self.client.generate(
            payload, model=self.model, affinity_key=affinity_key, timeout_s=timeout_s
        )


async def _takes_bias(http: httpx.AsyncClient, url: str, teacher: ExternalTeacher, token: int) -> bool:
    payload = {
        "input_ids": [0],
        "sampling_params": {"max_new_tokens": 1, "temperature": 0, "logit_bias": {str(token): 0.0}},
    }
    answer = await _send(http, "POST", f"{url}/generate", teacher, timeout_s=_IDENTITY_S, payload=payload)
    if answer.status_code not in (200, 400):
        raise UpstreamError(f"{url}/generate answered {answer.status_code}: {answer.text:.200}")
    return answer.status_code == 200


async def _get(
    http: httpx.AsyncClient, url: str, teacher: ExternalTeacher, instead: str | None = None
) -> Mapping[str, Any]:
    answer = await _send(http, "GET", url, teacher, timeout_s=_IDENTITY_S)
    if answer.status_code == 404 and instead is not None:
        return await _get(http, instead, teacher)
    if answer.status_code != 200:
        raise UpstreamError(f"{url} answered {answer.status_code}: {answer.text:.200}")
    return _object(answer, url)


async def _send(
    http: httpx.AsyncClient,
    method: str,
    url: str,
    teacher: ExternalTeacher,
    *,
    timeout_s: float,
    payload: Mapping[str, Any] | None = None,
) -> httpx.Response:
    """Send once; redirects are answers like others, so a token goes nowhere that was not named."""
    import httpx

    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await http.request(
                method, url, headers=teacher.headers, json=None if payload is None else dict(payload)
            )
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise DeadlineError(f"{url} gave no answer within {timeout_s:g} s") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UpstreamError(f"{url} could not be asked: {error!r}") from error


def _object(answer: httpx.Response, url: str) -> Mapping[str, Any]:
    try:
        value = answer.json()
    except ValueError as error:
        raise UpstreamError(f"{url} answered no JSON: {answer.text:.120}") from error
    if not isinstance(value, dict):
        raise UpstreamError(f"{url} answered {type(value).__name__}, not an object")
    return cast("dict[str, Any]", value)

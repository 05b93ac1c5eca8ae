"""A job's policy as the vLLM server that TRL's client asks: ``python -m rolecall_loops.trl_server --help``.

Serves what ``trl.generation.vllm_client.VLLMClient`` of TRL 1.16.0 calls to generate, a part of vLLM's own
API: ``GET /health``, ``GET /v1/models``, ``POST /v1/completions`` with token ids, ``n``
and the sampled tokens' log-probabilities. It keeps nothing and runs no model; requests go to the job's
engines directly, each prompt's samples with one affinity key.

What it has not, it refuses with 501 and the reason, which TRL shows: prompts as text, chats, scores of a
prompt's tokens, and weights by NCCL. Rolecall's engines take weights in versions, each one fenced and proved,
and no rank of theirs joins a group of TRL's; so ``GRPOTrainer(vllm_mode="server")``, which joins before it
does anything else, stops with that reason, and :func:`rolecall_loops.trl.rolecall_rollout` is the way for it.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

import click
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from rolecall.api import (
    AskedJob,
    PayloadError,
    RequestError,
    RolecallError,
    Sample,
    ask_job,
)

from .generation import generate
from .vllm_names import native_sampling

NO_GROUP = (
    "rolecall takes no weights by NCCL from TRL: save a checkpoint and publish it as a version "
    "(JobHandle.update_weights). For GRPOTrainer leave use_vllm off and give "
    "rollout_func=rolecall_loops.trl.rolecall_rollout(job, url=..., publish=...)"
)
NO_CHAT = "rolecall's server for TRL takes token ids: send them to /v1/completions"
_WEIGHTS = (
    ("/server_info", "GET"),
    ("/get_world_size", "GET"),
    ("/init_weight_transfer_engine", "POST"),
    ("/start_weight_update", "POST"),
    ("/update_weights", "POST"),
    ("/finish_weight_update", "POST"),
    ("/reset_prefix_cache", "POST"),
)
_CHATS = ("/v1/chat/completions", "/v1/chat/completions/render", "/inference/v1/generate")
_NOT_SAMPLING = ("model", "prompt", "n", "logprobs", "return_token_ids", "return_tokens_as_token_ids")
_NOT_HERE = 501
"""Not 500 to 503, which TRL's client repeats."""

_log = logging.getLogger(__name__)


def build_app(asked: AskedJob) -> Starlette:
    """Return the ASGI app for a job; any number of requests at once."""
    name = asked.resolved.config.job.name

    async def health(request: Request) -> Response:
        del request
        return Response()

    async def models(request: Request) -> Response:
        del request
        return JSONResponse(
            {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "rolecall"}]}
        )

    async def completions(request: Request) -> Response:
        try:
            body = await request.json()
        except ValueError as error:
            raise PayloadError(f"the body is not JSON: {error}", field="") from error
        return JSONResponse(await _complete(asked, _object(body)))

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/completions", completions, methods=["POST"]),
            *(Route(path, _refusal(NO_GROUP), methods=[method]) for path, method in _WEIGHTS),
            *(Route(path, _refusal(NO_CHAT), methods=["POST"]) for path in _CHATS),
        ],
        exception_handlers={RolecallError: _failed},
    )


def _refusal(reason: str) -> Any:
    async def refuse(request: Request) -> Response:
        del request
        return PlainTextResponse(reason, status_code=_NOT_HERE)

    return refuse


async def _failed(request: Request, error: Exception) -> Response:
    """Tell an error by its status and in its own words; TRL's client repeats 500, 502 and 503."""
    status = error.status if isinstance(error, RequestError) else 500
    _log.warning("%s: %d: %s", request.url.path, status, error)
    return PlainTextResponse(str(error), status_code=status)


class _Unsupported(PayloadError):
    """What vLLM has and this has not."""

    status = _NOT_HERE


async def _complete(asked: AskedJob, body: Mapping[str, Any]) -> dict[str, Any]:
    if body.get("prompt_logprobs") is not None:
        raise _Unsupported(
            "prompt_logprobs: ask the job's teacher, which scores tokens, at its own gateway",
            field="prompt_logprobs",
        )
    logprobs = body.get("logprobs")
    if logprobs not in (None, 0):
        raise _Unsupported(
            f"logprobs: must be 0 (those of the sampled tokens) or null, found {logprobs!r:.40}",
            field="logprobs",
        )
    n = body.get("n", 1)
    if type(n) is not int or n < 1:
        raise PayloadError(f"n: must be an integer of at least 1, found {n!r:.40}", field="n")
    prompts = _prompts(body.get("prompt"))
    sampling = native_sampling({name: value for name, value in body.items() if name not in _NOT_SAMPLING})
    call = uuid.uuid4().hex
    named = {f"trl/{call}/{at}": ids for at, ids in enumerate(prompts)}
    groups = await generate(asked, named, samples_per_prompt=n, sampling=sampling)
    samples = [sample for group in groups for sample in group]
    return {
        "id": f"cmpl-{call}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": asked.resolved.config.job.name,
        "choices": [_choice(at, sample, logprobs is not None) for at, sample in enumerate(samples)],
    }


def _choice(index: int, sample: Sample, logprobs: bool) -> dict[str, Any]:
    tokens = [f"token_id:{token}" for token in sample.response_ids]
    told = {
        "tokens": tokens,
        "token_logprobs": list(sample.rollout_log_probs),
        "top_logprobs": [
            {token: log_prob} for token, log_prob in zip(tokens, sample.rollout_log_probs, strict=True)
        ],
    }
    return {
        "index": index,
        "text": sample.response,
        "finish_reason": sample.finish_reason,
        "prompt_token_ids": list(sample.prompt_ids),
        "token_ids": list(sample.response_ids),
        "logprobs": told if logprobs else None,
    }


def _object(body: Any) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise PayloadError(f"the body must be an object, found {body!r:.80}", field="")
    return cast("Mapping[str, Any]", body)


def _prompts(given: Any) -> list[list[int]]:
    """Return prompts as lists of token ids; one list of ids alone is one prompt, as vLLM has it."""
    prompts = cast("Sequence[Any]", given) if isinstance(given, list) else ()
    if given and all(type(token) is int for token in prompts):
        prompts = [prompts]
    if not prompts or not all(_is_ids(ids) for ids in prompts):
        texts = isinstance(given, str) or any(isinstance(prompt, str) for prompt in prompts)
        raise (_Unsupported if texts else PayloadError)(
            "prompt: must be lists of token ids, none of them empty"
            + ("; text is not taken, since the job's own template would be put around it" if texts else ""),
            field="prompt",
        )
    return [list(ids) for ids in prompts]


def _is_ids(ids: Any) -> bool:
    tokens = cast("list[Any]", ids) if isinstance(ids, list) else []
    return bool(tokens) and all(type(token) is int and token >= 0 for token in tokens)


@click.command()
@click.option("--job", metavar="JOB", help="The job's name or file; may be left out while exactly one runs.")
@click.option(
    "--url",
    metavar="URL",
    help="Where the gateways are, up to a role's name; by default where the running job has them.",
)
@click.option(
    "--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Listen on this address."
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Listen on this port."
)
def main(job: str | None, url: str | None, host: str, port: int) -> None:
    """Serve a job's policy to TRL's VLLMClient, in the foreground, until told to end."""
    import uvicorn

    try:
        app = build_app(ask_job(job, url))
    except RolecallError as error:
        raise click.ClickException(str(error)) from error
    uvicorn.run(app, host=host, port=port)


if __name__ == "__main__":
    main()

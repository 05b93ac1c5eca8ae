"""The control socket: how commands ask a running job without joining its Ray.

One JSON object a line each way over a Unix socket in the run folder, which only the job's owner can
enter: ``{"do": NAME, ...}`` is answered by ``{"ok": true, "answer": ...}`` or ``{"ok": false, "error":
...}``. Which names there are, and what they do, is the job's to say. A job is stopped by SIGTERM, not from
here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from rolecall.errors import JobError, RolecallError

SOCKET_NAME = "control"

LONGEST_LINE = 64 * 2**20
"""Bytes: all events that a hub remembers, or the status of some thousand replicas."""

Command = Callable[..., Awaitable[Any]]
"""Takes a request's other fields as keywords; returns JSON values."""


class JobGoneError(JobError):
    """Nobody answers at a job's control socket."""


async def serve_control(run_dir: Path, commands: Mapping[str, Command]) -> asyncio.Server:
    """Start answering requests; close the returned server to stop.

    A command goes on when its asker has gone.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if line := await reader.readline():
                writer.write(json.dumps(await _reply(commands, line)).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            pass  # the asker has gone, and nobody else is told
        finally:
            writer.close()

    return await asyncio.start_unix_server(answer, path=run_dir / SOCKET_NAME, limit=LONGEST_LINE)


async def _reply(commands: Mapping[str, Command], line: bytes) -> Mapping[str, Any]:
    try:
        request: dict[str, Any] = json.loads(line)
        command = commands[request.pop("do")]
        return {"ok": True, "answer": await command(**request)}
    except RolecallError as error:
        return {"ok": False, "error": str(error)}
    except Exception as error:  # noqa: BLE001  told to the asker; the job goes on
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}


async def command_job(run_dir: Path, do: str, /, *, timeout_s: float = 30.0, **arguments: Any) -> Any:
    """Return the answer of the job that lives in ``run_dir`` to one request.

    Raises:
        JobError: it does not answer, or refuses; says what was seen.
    """
    path = run_dir / SOCKET_NAME
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(path, limit=LONGEST_LINE)
            try:
                writer.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
                await writer.drain()
                line = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        raise JobGoneError(
            f"the job's control socket {path} did not answer: {error or 'timed out'}"
        ) from error
    if not line:
        raise JobGoneError(f"the job closed its control socket {path} without an answer; it may be ending")
    reply: dict[str, Any] = json.loads(line)
    if not reply["ok"]:
        raise JobError(f"the job answered: {reply['error']}")
    return reply["answer"]

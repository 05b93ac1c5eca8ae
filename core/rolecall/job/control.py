"""The control socket: how ``rolecall status`` asks a running job without joining its Ray.

One JSON object a line each way over a Unix socket in the run folder, which only the job's owner
can enter. Reading changes nothing; a job is stopped by SIGTERM, not from here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from rolecall.errors import JobError

SOCKET_NAME = "control"

StatusSource = Callable[[], Awaitable[Mapping[str, Any]]]


async def serve_status(run_dir: Path, status: StatusSource) -> asyncio.Server:
    """Start answering status requests; close the returned server to stop."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if await reader.readline() == b"status\n":
                try:
                    reply: Mapping[str, Any] = {"ok": True, "status": await status()}
                except Exception as error:  # noqa: BLE001  told to the asker; the job goes on
                    reply = {"ok": False, "error": f"{type(error).__name__}: {error}"}
                writer.write(json.dumps(reply).encode() + b"\n")
                await writer.drain()
        finally:
            writer.close()

    return await asyncio.start_unix_server(answer, path=run_dir / SOCKET_NAME)


async def ask_status(run_dir: Path, timeout_s: float = 30.0) -> dict[str, Any]:
    """Return the status of the job that lives in ``run_dir``.

    Raises:
        JobError: it does not answer, or could not find out; says what was seen.
    """
    path = run_dir / SOCKET_NAME
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(b"status\n")
                await writer.drain()
                line = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError) as error:
        raise JobError(f"the job's control socket {path} did not answer: {error or 'timed out'}") from error
    if not line:
        raise JobError(f"the job closed its control socket {path} without an answer; it may be ending")
    reply: dict[str, Any] = json.loads(line)
    if not reply["ok"]:
        raise JobError(f"the job could not tell its status: {reply['error']}")
    return reply["status"]

"""The control socket: an answer, a failure told, a job that is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolecall.errors import JobError
from rolecall.job.control import ask_status, serve_status


async def test_status_travels(tmp_path: Path):
    async def status():
        return {"job": "demo"}

    server = await serve_status(tmp_path, status)
    assert await ask_status(tmp_path) == {"job": "demo"}
    server.close()


async def test_a_status_that_raises_is_told_and_the_next_one_answered(tmp_path: Path):
    answers = iter([ValueError("no actor"), None])

    async def status():
        if (error := next(answers)) is not None:
            raise error
        return {"job": "demo"}

    server = await serve_status(tmp_path, status)
    with pytest.raises(JobError, match="no actor"):
        await ask_status(tmp_path)
    assert await ask_status(tmp_path) == {"job": "demo"}
    server.close()


async def test_no_socket_is_a_clear_error(tmp_path: Path):
    with pytest.raises(JobError, match="did not answer"):
        await ask_status(tmp_path)

"""The control socket: an answer, a failure told, a job that is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rolecall.errors import JobError, LeaseBlockedError
from rolecall.job.control import JobGoneError, command_job, serve_control


async def test_questions_answers_and_refusals_travel(tmp_path: Path):
    async def status():
        return {"job": "demo", "long": "x" * 200_000}

    async def reconcile(role: str, proof: str):
        if role != "judge":
            raise LeaseBlockedError(f"{role}: process 4711 is left")
        return [role, proof]

    server = await serve_control(tmp_path, {"status": status, "reconcile": reconcile})
    assert (await command_job(tmp_path, "status"))["job"] == "demo"
    assert await command_job(tmp_path, "reconcile", role="judge", proof="node-gone") == ["judge", "node-gone"]
    with pytest.raises(JobError, match="the job answered: tutor: process 4711 is left"):
        await command_job(tmp_path, "reconcile", role="tutor", proof="node-gone")
    with pytest.raises(JobError, match="KeyError: 'dance'"):
        await command_job(tmp_path, "dance")
    with pytest.raises(JobError, match="unexpected keyword argument"):
        await command_job(tmp_path, "status", since=0)
    server.close()


async def test_a_command_goes_on_when_its_asker_has_gone(tmp_path: Path):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow():
        begun.set()
        await asyncio.sleep(0.01)
        ended.set()

    server = await serve_control(tmp_path, {"slow": slow})
    asker = asyncio.create_task(command_job(tmp_path, "slow"))
    await begun.wait()
    asker.cancel()
    async with asyncio.timeout(5):
        await ended.wait()
    server.close()


async def test_a_command_that_raises_is_told_and_the_next_one_answered(tmp_path: Path):
    answers = iter([ValueError("no actor"), None])

    async def status():
        if (error := next(answers)) is not None:
            raise error
        return {"job": "demo"}

    server = await serve_control(tmp_path, {"status": status})
    with pytest.raises(JobError, match="no actor"):
        await command_job(tmp_path, "status")
    assert await command_job(tmp_path, "status") == {"job": "demo"}
    server.close()


async def test_no_socket_is_a_clear_error(tmp_path: Path):
    with pytest.raises(JobGoneError, match="did not answer"):
        await command_job(tmp_path, "status")

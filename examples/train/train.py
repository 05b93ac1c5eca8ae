"""GRPO with a judge, a rule and a teacher, against a job that is up.

    rolecall up job-cpu.toml && python train.py job-cpu.toml

Each step: the rollout samples, judge, rule and teacher score, TransferQueue carries the batch, the commit
gate opens, the optimiser takes its turn on the devices, and the rollout gets the new weights, which is
proved before it samples with them. Figures go to ``run/metrics.jsonl``; ``plot.py`` draws them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from checkpoints import open_checkpoint
from learner import Learner, Recipe
from publish import ROLE, Publisher, Witness, awake_for
from rolecall.batches.prompts import open_prompts
from rolecall.batches.report import BatchReport
from rolecall.ids import BatchId
from rolecall.job.connect import connect
from rolecall.job.handle import JobHandle
from rolecall.model_sources.fetch import fetch_model
from rolecall.train import consume_async
from rows import check_rows

TRAINER = "actor"
COMMIT_TIMEOUT_S = 600.0
FIXED_PROMPT = "<|im_start|>user\nWhat is the capital of England?<|im_end|>\n<|im_start|>assistant\n"
"""Asked after each publication; none of those that are trained on."""
PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
"""Sampling from the policy itself, and not from one that is cut off or sharpened."""
LARGEST_ROLLOUT_KL = 0.01
"""Between the engine that sampled and the optimiser's own forward pass, before the step; beyond it one of
them computes with other weights or other tokens."""


class Clock:
    """Seconds of each named part of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Generator[None]:
        begun = time.monotonic()
        yield
        self.add(name, time.monotonic() - begun)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def add_report(self, report: BatchReport) -> None:
        """Add a batch's own phases, and the hand-overs between its roles."""
        for phase in report.phases:
            self.add(phase.name, phase.end_s - phase.start_s)
        for handover in report.handovers:
            self.add("hand-overs", handover.end_s - handover.start_s)


async def train(job: JobHandle, recipe: Recipe, steps: int, out: Path) -> None:
    """Run ``steps`` optimiser steps, and one more batch that measures what the last of them did."""
    settings = job.resolved.config.batch
    if settings is None or any(settings.sampling.get(name, value) != value for name, value in PLAIN.items()):
        raise SystemExit(
            f"the job needs a [batch], sampled with {PLAIN}: the losses take log-probabilities as they are"
        )
    prompts = open_prompts(settings, job.resolved.file)
    source = job.resolved.roles[ROLE].models[job.resolved.roles[ROLE].default_model or ""].config.source
    checkpoint = open_checkpoint(fetch_model(source, base_dir=job.resolved.file.parent))
    learner = Learner(checkpoint, recipe, device_of(job))
    publisher = Publisher(job, checkpoint, out / "weights")
    witness = Witness(job, checkpoint, FIXED_PROMPT)
    producer, reader = await job.open_sink(), await job.open_sink()
    runner = await job.batch_runner(producer)
    metrics = out / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    for step in range(steps + 1):
        batch, version, clock, begun = BatchId(step), publisher.version, Clock(), time.monotonic()
        async with awake_for(job, batch):
            with clock("check weights"):
                checked = await witness.check(learner.model, version)
        producing = asyncio.create_task(runner.run(batch, prompts.of_batch(batch)))
        try:
            async for committed in consume_async(
                job.coordinator, reader, [batch], timeout_s=COMMIT_TIMEOUT_S
            ):
                rows = committed.rows
                check_rows(rows, version)
                figures = await optimise(job, learner, batch, rows, clock, last=step == steps)
                committed.clear()
        except BaseException:
            producing.cancel()
            await asyncio.gather(producing, return_exceptions=True)
            raise
        clock.add_report(await producing)
        if not figures["rollout_kl"] <= LARGEST_ROLLOUT_KL:
            raise SystemExit(
                f"step {step}: the rollout's log-probabilities are not the optimiser's: {figures}"
            )
        if step < steps:
            with clock("write weights"):
                path = publisher.write(learner.model, step + 1)
            with clock("update weights"):
                await publisher.publish(path, step + 1)
        line = {
            "step": step,
            "version": version,
            **figures,
            "rewards": mean_rewards(rows),
            "response_tokens": sum(len(row["response_ids"]) for row in rows) / len(rows),
            "fixed_prompt": vars(checked),
            "device_rest_bytes": learner.rest,
            "phases_s": clock.seconds,
            "seconds": time.monotonic() - begun,
        }
        with metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(in_words(line), flush=True)
    for sink in (producer, reader):
        await asyncio.to_thread(sink.close)


async def optimise(
    job: JobHandle,
    learner: Learner,
    batch: BatchId,
    rows: Sequence[Mapping[str, Any]],
    clock: Clock,
    *,
    last: bool,
) -> dict[str, float]:
    """Take the trainer's turn on the devices for one step; the last batch is only measured."""
    begun, before = time.monotonic(), sum(clock.seconds.values())
    async with job.training_turn(batch, TRAINER):
        with learner.on_device(), clock("train"):
            figures = learner.evaluate(rows) if last else learner.step(rows)
    inside = sum(clock.seconds.values()) - before
    clock.add("to and from the device", time.monotonic() - begun - inside)
    return figures


def device_of(job: JobHandle) -> torch.device:
    """Return where the trainer computes: on the GPU of its bundle, or on the CPU if bundles are no GPUs."""
    (device,) = job.training_devices(TRAINER)
    if device.resource != "GPU":
        return torch.device("cpu")
    os.environ["CUDA_VISIBLE_DEVICES"] = device.device_id
    torch.set_float32_matmul_precision("high")
    return torch.device("cuda")


def mean_rewards(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    return {name: sum(row["reward"][name] for row in rows) / len(rows) for name in rows[0]["reward"]}


def in_words(line: Mapping[str, Any]) -> str:
    rewards = "  ".join(f"{name} {value:.3f}" for name, value in line["rewards"].items())
    return (
        f"step {line['step']:3}  weights {line['version']:8} loss {line['loss']:+.4f}  {rewards}  "
        f"teacher KL {line['teacher_kl']:.4f}  rollout KL {line['rollout_kl']:.1e}  {line['seconds']:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job", help="name or file of a job that is up")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--distillation", type=float, default=1.0, help="weight of the KL to the teacher")
    parser.add_argument("--reward", nargs=2, action="append", metavar=("NAME", "WEIGHT"),
                        help="how much a reward counts; repeat it (default: judge 1, rule 1)")  # fmt: skip
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1, help="PyTorch's threads on the CPU")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "run")
    given = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(given.threads)
    recipe = Recipe(
        reward_weights={name: float(weight) for name, weight in given.reward or [("judge", 1), ("rule", 1)]},
        distillation=given.distillation,
        learning_rate=given.learning_rate,
        micro_batch=given.micro_batch,
    )
    with connect(given.job) as job:
        asyncio.run(train(job, recipe, given.steps, given.out))


if __name__ == "__main__":
    main()

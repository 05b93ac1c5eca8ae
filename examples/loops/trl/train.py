"""GRPO with TRL, the answers and the rewards from a rolecall job on this machine.

    rolecall up examples/loops/job.toml
    python examples/loops/trl/train.py MODEL

MODEL is a folder or name of the policy's weights, as Transformers loads them: the same that the job serves.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from rolecall.api import FromDisk
from rolecall.job.connect import connect
from rolecall_loops.trl import rolecall_reward, rolecall_rollout

JOB = "examples/loops/job.toml"
CHECKPOINTS = Path("checkpoints").absolute()


def publish(trainer: Any) -> None:
    """Save the policy, and give it to the job's engines as a version of its own."""
    version = f"step-{trainer.state.global_step}"
    folder = CHECKPOINTS / version
    trainer.save_model(str(folder))
    if trainer.accelerator.is_main_process:
        with connect(JOB) as job:
            asyncio.run(job.update_weights("rollout", FromDisk(path=folder), version))


def main(model: str) -> None:
    dataset = Dataset.from_list(
        [{"prompt": f"{number} + 1 =", "answer": str(number + 1)} for number in range(64)]
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[rolecall_reward(JOB, reward="judge"), rolecall_reward(JOB, reward="exact")],
        rollout_func=rolecall_rollout(JOB, publish=publish),
        train_dataset=dataset,
        args=GRPOConfig(output_dir="trained", max_steps=20, max_completion_length=64),
    )
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Draw a run: python plot.py run/metrics.jsonl run/plots.png"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

PHASES = (
    "generate",
    "judge",
    "teacher",
    "train",
    "to and from the device",
    "check weights",
    "write weights",
    "update weights",
    "hand-overs",
)
"""Bars from the bottom up; whatever else a step did is one more."""

Line = dict[str, Any]


def draw(lines: Sequence[Line], title: str) -> Any:
    """Return the figure of a run: above what was learnt, below whether weights arrived and what it cost."""
    figure, axes = plt.subplots(2, 3, figsize=(13, 7), layout="constrained")
    figure.suptitle(title)
    trained = lines[:-1] if len(lines) > 1 else lines  # the last batch only measures
    _curve(
        axes[0, 0],
        trained,
        "loss",
        {"loss": lambda line: line["loss"], "policy": lambda line: line["policy_loss"]},
    )
    _curve(
        axes[0, 1],
        lines,
        "mean reward of the batch",
        {name: lambda line, name=name: line["rewards"][name] for name in lines[0]["rewards"]},
    )
    _curve(
        axes[0, 2],
        lines,
        "KL(policy ‖ teacher), nats per token",
        {
            "top-k": lambda line: line["teacher_kl"],
            "estimated from samples": lambda line: line["teacher_kl_sampled"],
        },
    )
    _curve(
        axes[1, 0], lines, "KL(rollout ‖ optimiser) before the step", {"": lambda line: line["rollout_kl"]}
    )
    axes[1, 0].set_yscale("log")
    _curve(
        axes[1, 1],
        lines,
        "a fixed prompt's log-probability",
        {
            "optimiser's forward pass": lambda line: line["fixed_prompt"]["computed"],
            "rollout's gateway": lambda line: line["fixed_prompt"]["gateway"],
        },
    )
    axes[1, 1].lines[1].set(linestyle="none", marker="x", markersize=8)
    axes[1, 1].legend(frameon=False)
    _bars(axes[1, 2], lines)
    return figure


def _curve(axes: Axes, lines: Sequence[Line], title: str, curves: dict[str, Callable[[Line], float]]) -> None:
    for name, value in curves.items():
        axes.plot([line["step"] for line in lines], [value(line) for line in lines], marker=".", label=name)
    axes.set(title=title, xlabel="optimiser steps before the batch")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    if any(curves):
        axes.legend(frameon=False)


def _bars(axes: Axes, lines: Sequence[Line]) -> None:
    steps = [line["step"] for line in lines]
    bottom = [0.0] * len(lines)
    for name in (*PHASES, "everything else"):
        heights = [
            line["phases_s"].get(name, 0.0)
            if name in PHASES
            else max(line["seconds"] - sum(line["phases_s"].get(phase, 0.0) for phase in PHASES), 0.0)
            for line in lines
        ]
        axes.bar(steps, heights, bottom=bottom, label=name, width=0.85)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set(title="seconds of each step", xlabel="step")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("metrics", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--title", default="GRPO with judge, rule and teacher")
    given = parser.parse_args()
    lines = [json.loads(line) for line in given.metrics.read_text(encoding="utf-8").splitlines()]
    draw(lines, given.title).savefig(given.picture, dpi=90)


if __name__ == "__main__":
    main()

"""The example configurations name what is there."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import rolecall_loops.trl
from rolecall.api import ask_job
from rolecall.config.loader import load_config
from rolecall.job.prepare import prepare_job
from rolecall_loops.verl import compute_score

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "loops"
JOB = EXAMPLES / "job.toml"
URL = f"http://127.0.0.1:{load_config(JOB).gateway.port}"


def named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_the_job_can_be_planned_with_all_roles_awake_together() -> None:
    _, plan = prepare_job(JOB)
    assert len(plan.phases) == 1


def test_slime_is_told_functions_that_are_there_and_a_reward_of_the_job() -> None:
    arguments = (EXAMPLES / "slime" / "arguments.sh").read_text(encoding="utf-8")
    for path in re.findall(r"rolecall_loops[\w.]+", arguments):
        assert callable(named(path))
    lines = (EXAMPLES / "slime" / "rolecall.yaml").read_text(encoding="utf-8").splitlines()
    told = dict(line.split(": ") for line in lines if not line.startswith("#"))
    assert set(told) == set(re.findall(r'"(rolecall_\w+)"', inspect.getsource(named("rolecall_loops.slime"))))
    assert told["rolecall_url"] == URL
    assert ask_job(str(ROOT / told["rolecall_job"])).reward(told["rolecall_reward"]).name == "judge"


def test_slime_can_call_the_hook_for_weights() -> None:
    """``def hook(args, version_dir: str, rollout_engines) -> None``, as slime 0.3.1 documents it."""
    tree = ast.parse((EXAMPLES / "slime" / "publish.py").read_text(encoding="utf-8"))
    (hook,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "hook"]
    assert [argument.arg for argument in hook.args.args] == ["args", "version_dir", "rollout_engines"]


def test_verl_is_told_a_function_that_takes_what_it_is_given() -> None:
    lines = (EXAMPLES / "verl" / "overrides.txt").read_text(encoding="utf-8").splitlines()
    overrides = dict(line.lstrip("+").split("=") for line in lines)
    of_function = "reward.custom_reward_function."
    module = overrides[f"{of_function}path"].removeprefix("pkg://")
    assert named(f"{module}.{overrides[f'{of_function}name']}") is compute_score
    kwargs = {key.rpartition(".")[2]: value for key, value in overrides.items() if ".reward_kwargs." in key}
    inspect.signature(compute_score).bind("", "", "", {}, **kwargs)
    assert set(kwargs) <= set(inspect.signature(compute_score).parameters)
    assert kwargs["url"] == URL
    assert ask_job(str(ROOT / kwargs["job"])).reward(kwargs["reward"]).name == "judge"


def test_trl_s_script_calls_what_is_there() -> None:
    tree = ast.parse((EXAMPLES / "trl" / "train.py").read_text(encoding="utf-8"))
    calls = [
        (node.func.id, node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    of_rolecall = [(name, call) for name, call in calls if name.startswith("rolecall_")]
    assert len(of_rolecall) == 3
    for name, call in of_rolecall:
        function = getattr(rolecall_loops.trl, name)
        inspect.signature(function).bind(*call.args, **{keyword.arg: None for keyword in call.keywords})

"""``rolecall plan`` as a process starts quickly, so it imports nothing that only a running job needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

WHAT_RUNS_A_JOB = {
    "ray", "numpy", "torch", "xllamacpp", "tokenizers", "gguf", "msgspec",
    "httpx", "aiohttp", "starlette", "uvicorn", "anyio", "asyncio", "ssl", "hashlib", "psutil", "jinja2",
    "rich",  # nobody sees colours in a pipe
}  # fmt: skip


@pytest.mark.parametrize("file", ["quickstart.toml", "layouts/slime-multi-model-16.toml"])
def test_planning_imports_nothing_that_runs_a_job(file: str) -> None:
    code = (
        "import sys\n"
        "from rolecall.cli.main import cli\n"
        f"cli.main(['plan', {str(EXAMPLES / file)!r}], standalone_mode=False)\n"
        "print('MODULES', *sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "R   rollout" in done.stdout
    modules = set(done.stdout.rpartition("MODULES ")[2].split())
    assert "rolecall.placement.preflight" in modules
    assert not WHAT_RUNS_A_JOB & modules

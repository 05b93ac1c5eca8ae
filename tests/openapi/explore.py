"""``python tests/openapi/explore.py``: schemathesis against the gateway of every role.

It makes requests from the documents in ``docs/openapi/``, valid and invalid ones, and holds each answer
against all its checks: no 5xx, only statuses, headers and bodies that the document has, what is invalid
refused, what is valid accepted. The gateways are served on real sockets, before an engine that refuses what
no gateway may send it.

    python tests/openapi/explore.py --cases 20000

takes about ten minutes on two quiet cores. Each round has another seed; the last lines are the answers by
operation and status.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from served_role import ROLES, ServedRole, narrowed, served_role

_EXAMPLES = 1000
"""Most cases of one operation in one round. Each round begins with seconds of work on the schemas."""


def explored(served: ServedRole, *, seed: int, examples: int = _EXAMPLES, phases: str = "fuzzing") -> str:
    """Let schemathesis run once; return what it found wrong, empty if nothing."""
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{served.role}.json"
        file.write_text(json.dumps(narrowed(served.role)), encoding="utf-8")
        command = [sys.executable, "-m", "schemathesis.cli", "run", str(file), "--url", served.url]
        command += ["--checks", "all", "--phases", phases, "--seed", str(seed), "--no-color"]
        command += ["--max-examples", str(examples), "--suppress-health-check", "all", "--warnings", "off"]
        command += ["--no-shrink", "--max-failures", "1"]
        path = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "SCHEMATHESIS_HOOKS": "explored_requests", "PYTHONPATH": path}
        done = subprocess.run(
            command, cwd=folder, env=environment, check=False, capture_output=True, text=True
        )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def explore(role: str, *, cases: int, seed: int) -> tuple[str, Counter[tuple[str, int]]]:
    """Ask a role's gateway so often, or until something is wrong; return that and the answers."""
    with served_role(role) as served:
        phases = "examples,coverage,fuzzing"
        operations = sum(len(methods) for methods in narrowed(role)["paths"].values())
        examples = min(_EXAMPLES, cases // operations + 1)
        while True:
            wrong = explored(served, seed=seed, examples=examples, phases=phases)
            print(f"{role}: {served.answered.total()} cases, seed {seed}\n{wrong}".rstrip(), flush=True)
            if wrong or served.answered.total() >= cases:
                return wrong, served.answered
            seed, phases = seed + 1, "fuzzing"


def _main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--cases", type=int, default=20_000, help="requests at least, over all roles")
    parser.add_argument("--seed", type=int, default=0, help="of the first round")
    asked = parser.parse_args(arguments)
    share = -(-asked.cases // len(ROLES))
    with ThreadPoolExecutor(len(ROLES)) as threads:
        results = list(threads.map(lambda role: explore(role, cases=share, seed=asked.seed), ROLES))
    for role, (_, answered) in zip(ROLES, results, strict=True):
        for (operation, status), count in sorted(answered.items()):
            if status != 405:
                print(f"{role:10} {operation!r:32} {status} {count}")
    total = sum(answered.total() for _, answered in results)
    broken = sum(count for _, answered in results for (_, status), count in answered.items() if status >= 500)
    wrong = any(found for found, _ in results)
    verdict = "something is wrong" if wrong else "nothing is wrong"
    print(f"{total} cases, {broken} answers of 500 and above, {verdict}")
    return 1 if wrong or broken else 0


if __name__ == "__main__":
    sys.exit(_main())
